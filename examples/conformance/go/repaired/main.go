// The twin of described, repaired: a turn hands off whichever way it ends, in the step that ends it; whatever
// leaves the queue gets its RunComplete; and the queue is in the order of accept.
//
// Check it with: go build -o repaired ./repaired && turngate conform -- ./repaired
package main

import (
	"context"
	"errors"
	"log"
	"sort"
	"sync"

	"turngate.example/port"
)

type prompt struct {
	session *session
	run     string
	seq     uint64
}

type turn struct {
	ctx    context.Context
	cancel context.CancelFunc
	runs   []string // the lead, then what was folded in
}

type session struct {
	mu       sync.Mutex
	accepted int
	mark     uint64
	queue    []prompt // never what a cancel covers: a cancel drops the queue in its own step
	active   *turn
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

func (d *dispatcher) Accept(name, run string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	s.accepted++
	d.sequence++
	d.prompts[run] = prompt{s, run, d.sequence}
}

func (d *dispatcher) Enter(run string) {
	d.mu.Lock()
	p := d.prompts[run]
	delete(d.prompts, run)
	d.mu.Unlock()
	d.port.Go(func() { d.enter(p) })
}

// enter decides once, under the lock. The mark goes with the last accepted prompt.
func (d *dispatcher) enter(p prompt) {
	s := p.session
	s.mu.Lock()
	defer s.mu.Unlock()
	covered := p.seq <= s.mark
	if s.accepted--; s.accepted == 0 {
		s.mark = 0
	}
	switch {
	case covered:
		d.port.Go(func() {
			d.port.Wrote(p.run, "canceled")
			d.port.Complete(p.run, true, nil)
		})
	case s.active != nil || len(s.queue) > 0:
		s.queue = append(s.queue, p)
		sort.Slice(s.queue, func(i, j int) bool { return s.queue[i].seq < s.queue[j].seq })
	default:
		d.start(p)
	}
}

// start makes a prompt the active turn; the caller holds the lock of its session.
func (d *dispatcher) start(p prompt) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &turn{ctx, cancel, []string{p.run}}
	p.session.active = t
	d.port.Go(func() {
		err := d.port.Work(ctx, p.run, func() { d.fold(p.session, t) })
		d.settle(p.session, t, err)
	})
}

// settle writes the messages of a turn, completes its runs and hands off, whichever way the turn has ended.
func (d *dispatcher) settle(s *session, t *turn, err error) {
	for {
		reason := port.Reason(t.ctx, err)
		for _, run := range t.runs {
			d.port.Wrote(run, reason)
		}
		s.mu.Lock()
		if reason == port.Reason(t.ctx, err) {
			break
		}
		s.mu.Unlock() // A cancel came during the write: the messages have to say so.
	}
	defer s.mu.Unlock()
	for _, run := range t.runs {
		d.port.Complete(run, t.ctx.Err() != nil, err)
	}
	t.cancel()
	s.active = nil
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		d.start(next)
	}
}

// fold takes the queue into the turn, unless a cancel covers the turn.
func (d *dispatcher) fold(s *session, t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ctx.Err() != nil {
		return
	}
	for _, p := range s.queue {
		t.runs = append(t.runs, p.run)
		d.port.Folded(p.run, t.runs[0])
	}
	s.queue = nil
}

func (d *dispatcher) Cancel(name string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted > 0 {
		d.mu.Lock()
		s.mark = d.sequence
		d.mu.Unlock()
	}
	d.drop(s, true, nil)
	if s.active != nil {
		s.active.cancel()
	}
}

func (d *dispatcher) Clear(name string) {
	s := d.session(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.drop(s, false, errors.New("cleared from the queue"))
}

// drop completes what is queued; the caller holds the lock.
func (d *dispatcher) drop(s *session, cancelled bool, err error) {
	for _, p := range s.queue {
		d.port.Complete(p.run, cancelled, err)
	}
	s.queue = nil
}

func main() {
	err := port.Serve([]string{"cancel", "clear", "folds", "messages", "two_phase"}, func(p *port.Port) port.Dispatcher {
		return &dispatcher{port: p, sessions: map[string]*session{}, prompts: map[string]prompt{}}
	})
	if err != nil {
		log.Fatal(err)
	}
}
