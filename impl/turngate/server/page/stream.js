// The event stream, over as many connections as it takes. EventSource cannot send a token, so this is fetch.

const SILENCE = 40_000; // the server says something every 15 s; when it is silent for longer, the line is gone
const FIRST_PAUSE = 250, LONGEST_PAUSE = 4_000;

export class Stream {
  constructor({url, headers, onEvent, onLink}) {
    Object.assign(this, {url, headers, onEvent, onLink, cursor: null, pause: FIRST_PAUSE});
  }

  async follow() {
    for (;;) {
      const refused = await this.connect();
      if (refused) return;
      this.onLink('reconnecting');
      await new Promise(done => setTimeout(done, this.pause * (0.5 + Math.random() / 2)));
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
    }
  }

  // Read until the line breaks. Returns whether there is no use in trying again.
  async connect() {
    const gone = new AbortController();
    let silence;
    const heard = () => { clearTimeout(silence); silence = setTimeout(() => gone.abort(), SILENCE); };
    try {
      heard();
      const headers = {...this.headers(), Accept: 'text/event-stream'};
      if (this.cursor !== null) headers['Last-Event-ID'] = this.cursor;
      const response = await fetch(this.url, {headers, signal: gone.signal, cache: 'no-store'});
      if (response.status === 401) { this.onLink('refused'); return true; }
      if (!response.ok) return false;
      this.pause = FIRST_PAUSE;
      this.onLink('live');
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const {value, done} = await reader.read();
        if (done) return false;
        heard();
        const frames = (rest + value).split('\n\n');
        rest = frames.pop();
        frames.forEach(frame => this.take(frame));
      }
    } catch {
      return false;
    } finally {
      clearTimeout(silence);
    }
  }

  take(frame) {
    let event = '', id = null;
    const data = [];
    for (const line of frame.split('\n')) {
      const at = line.indexOf(':');
      const field = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? '' : line.slice(at + 1).replace(/^ /, '');
      if (field === 'event') event = value;
      else if (field === 'data') data.push(value);
      else if (field === 'id') id = value;
    }
    if (data.length) this.onEvent(event, JSON.parse(data.join('\n')));
    if (id !== null) this.cursor = id; // when the event has been taken in, not before
  }
}
