// A dispatcher in the final form that its own server gave it, after a series of repairs: a prompt is reserved
// at accept and stamped with a sequence, a cancel raises a mark, and entry, cancel, fold and handoff take the
// lock of their session. The flaws that are left are marked with "Flaw".
//
// Check it with: go build -o described ./described && turngate conform -- ./described
package main

import (
	"context"
	"log"
	"sync"

	"turngate.example/port"
)

type prompt struct {
	session *session
	run     string
	seq     uint64
}

type session struct {
	mu       sync.Mutex
	accepted int
	mark     uint64
	queue    []prompt
	active   context.CancelFunc
}

type dispatcher struct {
	port     *port.Port
	mu       sync.Mutex
	sequence uint64
	sessions map[string]*session
	prompts  map[string]prompt
}

func (d *dispatcher) session(name string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[name] == nil {
		d.sessions[name] = &session{}
	}
	return d.sessions[name]
}

// reserve counts a prompt as accepted and stamps it with the next sequence; the caller holds the session's lock.
func (d *dispatcher) reserve(s *session, run string) prompt {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.accepted++
	d.sequence++
	d.prompts[run] = prompt{s, run, d.sequence}
	return d.prompts[run]
}

// release gives a reservation back. The mark goes with the last one.
func (s *session) release() {
	s.accepted--
	if s.accepted == 0 {
		s.mark = 0
	}
}

func (d *dispatcher) Accept(name, run string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.reserve(s, run)
}

func (d *dispatcher) Enter(run string) {
	d.mu.Lock()
	p := d.prompts[run]
	d.mu.Unlock()
	d.port.Go(func() { d.run(p) })
}

func (d *dispatcher) run(p prompt) {
	s := p.session
	s.mu.Lock()
	if p.seq <= s.mark {
		s.release()
		s.mu.Unlock()
		d.port.Wrote(p.run, "canceled")
		d.port.Complete(p.run, true, nil)
		return
	}
	if s.active != nil { // Flaw: a newcomer overtakes a queue that was left without a turn.
		s.queue = append(s.queue, p) // Flaw: in the order of entry, not of accept.
		s.release()
		s.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.active = cancel
	s.release()
	s.mu.Unlock()

	err := d.port.Work(ctx, p.run, func() { d.fold(p) })
	d.port.Wrote(p.run, port.Reason(ctx, err))
	s.mu.Lock()
	s.active = nil
	if err != nil {
		s.mu.Unlock()
		d.port.Complete(p.run, ctx.Err() != nil, err)
		return // Flaw: after an error or a cancel the queue stays.
	}
	if len(s.queue) == 0 {
		s.mu.Unlock()
		d.port.Complete(p.run, false, nil)
		return
	}
	next := s.queue[0]
	s.queue = s.queue[1:]
	next = d.reserve(s, next.run)
	s.mu.Unlock()
	d.run(next) // Flaw: the RunComplete of this run is left to its successor.
}

// fold takes the queue into the turn, but for what a cancel covers.
func (d *dispatcher) fold(lead prompt) {
	s := lead.session
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue {
		if p.seq > s.mark {
			d.port.Folded(p.run, lead.run) // Flaw: it gets no RunComplete.
		}
	}
	s.queue = nil
}

func (d *dispatcher) Cancel(name string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != nil {
		s.active()
	}
	if s.accepted > 0 {
		d.mu.Lock()
		s.mark = d.sequence
		d.mu.Unlock()
	}
	s.queue = nil // Flaw: what is dropped gets no RunComplete.
}

func (d *dispatcher) Clear(name string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil // Flaw: here neither.
}

func main() {
	err := port.Serve([]string{"cancel", "clear", "folds", "messages", "two_phase"}, func(p *port.Port) port.Dispatcher {
		return &dispatcher{port: p, sessions: map[string]*session{}, prompts: map[string]prompt{}}
	})
	if err != nil {
		log.Fatal(err)
	}
}
