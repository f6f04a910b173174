// Package port is the port of Turngate's conformance kit for a dispatcher written in Go, and a player of its test
// vectors.
//
// A dispatcher starts its goroutines with Go and does the work of a turn with Work. So the port knows when
// nothing moves any more: that is when it answers. It finds out by itself when a run enters and when a turn
// starts; the dispatcher reports RunCompletes, folds and messages where a caller would learn of them.
package port

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Dispatcher is what is put to the test. It may also be an Enterer, a Canceller, a Clearer, and a Performer.
type Dispatcher interface {
	Accept(session, run string)
}

// Enterer is a dispatcher that accepts and enters in two steps: the feature two_phase.
type Enterer interface{ Enter(run string) }

// Canceller is a dispatcher with the feature cancel.
type Canceller interface{ Cancel(session string) }

// Clearer is a dispatcher with the feature clear.
type Clearer interface{ Clear(session string) }

// Performer is a dispatcher with other operations: cancel_run, interrupt, reject and whatever the kit has beside
// them. Perform returns false if it does not know the operation.
type Performer interface{ Perform(q Question) bool }

// Question is what the kit asks; Raw is the line as it came. Ops are the operations of a burst.
type Question struct {
	ID      int             `json:"id"`
	Op      string          `json:"op"`
	Session string          `json:"session"`
	Run     string          `json:"run"`
	Ops     []Question      `json:"ops,omitempty"`
	Raw     json.RawMessage `json:"-"`
}

// Event is something that the subject shows: its kind is under "event".
type Event = map[string]any

// Answer is what the subject answers.
type Answer struct {
	ID       int      `json:"id"`
	Features []string `json:"features,omitempty"`
	Events   []Event  `json:"events"`
	AtWork   []string `json:"at_work"`
}

// Subject is one dispatcher at a time behind the port.
type Subject struct {
	Features   []string
	dispatcher func(*Port) Dispatcher
	port       *Port
	now        Dispatcher
}

// NewSubject returns a subject with these features, whose dispatchers are made by a function.
func NewSubject(features []string, dispatcher func(*Port) Dispatcher) *Subject {
	return &Subject{Features: features, dispatcher: dispatcher}
}

// Has tells whether the subject has a feature.
func (s *Subject) Has(feature string) bool {
	for _, each := range s.Features {
		if each == feature {
			return true
		}
	}
	return false
}

// Ask answers a question, when nothing moves any more.
func (s *Subject) Ask(q Question) (Answer, error) {
	if q.Op == "hello" {
		return Answer{ID: q.ID, Features: s.Features, Events: []Event{}, AtWork: []string{}}, nil
	}
	if q.Op == "reset" {
		s.port = newPort()
		s.now = s.dispatcher(s.port)
	} else if s.port == nil {
		return Answer{}, errors.New("the first question must be hello or reset")
	} else {
		asked := []Question{q}
		if q.Op == "burst" {
			asked = q.Ops
		}
		for _, each := range asked {
			if err := s.perform(each); err != nil {
				return Answer{}, err
			}
		}
	}
	s.port.rest()
	s.port.queued()
	return s.port.answer(q.ID), nil
}

// takesIn tells whether an operation brings a new prompt.
func takesIn(op string) bool { return op == "accept" || op == "interrupt" || op == "reject" }

func (s *Subject) perform(q Question) error {
	enterer, isEnterer := s.now.(Enterer)
	if q.Op == "enter" && isEnterer {
		s.port.enters(q.Run)
		enterer.Enter(q.Run)
		return nil
	}
	if takesIn(q.Op) && !isEnterer {
		s.port.enters(q.Run)
	}
	switch q.Op {
	case "accept":
		s.now.Accept(q.Session, q.Run)
		return nil
	case "finish", "fail", "fold":
		s.port.tell(q.Run, q.Op)
		return nil
	case "cancel":
		if it, ok := s.now.(Canceller); ok {
			it.Cancel(q.Session)
			return nil
		}
	case "clear":
		if it, ok := s.now.(Clearer); ok {
			it.Clear(q.Session)
			return nil
		}
	}
	if it, ok := s.now.(Performer); ok && it.Perform(q) {
		return nil
	}
	return fmt.Errorf("the dispatcher has no operation %q", q.Op)
}

// worker is a runner that waits to be told what to do.
type worker struct {
	ctx   context.Context
	told  chan string
	awake bool
}

// Port is one program's view of one dispatcher. What an earlier program left behind is not heard.
type Port struct {
	mu       sync.Mutex
	changed  *sync.Cond
	moving   int
	entering []string
	workers  map[string]*worker
	seen     []Event
}

func newPort() *Port {
	p := &Port{workers: map[string]*worker{}, seen: []Event{}}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// Go starts a goroutine whose work the port waits for.
func (p *Port) Go(work func()) {
	p.move(+1)
	go func() {
		defer p.move(-1)
		work()
	}()
}

func (p *Port) move(by int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moving += by
	p.changed.Broadcast()
}

// Work does the work of one turn: it shows that the turn has started, and then does as the kit says.
func (p *Port) Work(ctx context.Context, run string, fold func()) error {
	me := &worker{ctx: ctx, told: make(chan string, 1)}
	p.show(run, "active", Event{"event": "handoff", "run": run})
	p.mu.Lock()
	p.workers[run] = me
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.workers, run)
	}()
	for {
		switch me.wait(p) {
		case "finish":
			return nil
		case "fail":
			return errors.New("no luck")
		case "fold":
			fold()
		default:
			return ctx.Err()
		}
	}
}

// wait blocks until the worker is told something, or its context is cancelled.
func (me *worker) wait(p *Port) (told string) {
	p.move(-1)
	select {
	case told = <-me.told:
	case <-me.ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moving++
	me.awake = false
	return told
}

func (p *Port) tell(run, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if me := p.workers[run]; me != nil && me.ctx.Err() == nil {
		me.awake = true
		me.told <- what
	}
}

// rest returns when nothing moves, and no worker is about to.
func (p *Port) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.moving > 0 || p.waking() {
		p.changed.Wait()
	}
}

func (p *Port) waking() bool {
	for _, me := range p.workers {
		if me.awake || me.ctx.Err() != nil {
			return true
		}
	}
	return false
}

func (p *Port) enters(run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entering = append(p.entering, run)
}

// enteredNow tells whether the run was entering, and forgets it; the caller holds the lock.
func (p *Port) enteredNow(run string) bool {
	for nth, each := range p.entering {
		if each == run {
			p.entering = append(p.entering[:nth], p.entering[nth+1:]...)
			return true
		}
	}
	return false
}

// queued shows the runs that have entered and neither started nor ended.
func (p *Port) queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, run := range p.entering {
		p.seen = append(p.seen, Event{"event": "enter", "run": run, "state": "queued"})
	}
	p.entering = nil
}

// Reason says what the messages of a turn have to say about its end.
func Reason(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "canceled"
	case err != nil:
		return "error"
	}
	return "end_turn"
}

// Wrote shows that the messages of a run are written: reason is end_turn, error or canceled.
func (p *Port) Wrote(run, reason string) {
	p.show(run, "cancel_on_entry", nil)
	p.show(run, "", Event{"event": "wrote", "run": run, "reason": reason})
}

// Folded shows that a queued run has joined the turn of another.
func (p *Port) Folded(run, into string) {
	p.show(run, "queued", nil)
	p.show(run, "", Event{"event": "fold", "run": run, "into": into})
}

// Complete shows the RunComplete of a run.
func (p *Port) Complete(run string, cancelled bool, err error) {
	event := Event{"event": "complete", "run": run, "cancelled": cancelled}
	if err != nil && !cancelled {
		event["error"] = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enteredNow(run) // and ended in the same moment
	p.seen = append(p.seen, event)
}

// show appends an event; or, if the run is entering just now and this is what it enters, its entry.
func (p *Port) show(run, state string, event Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state != "" && p.enteredNow(run) {
		event = Event{"event": "enter", "run": run, "state": state}
	}
	if event != nil {
		p.seen = append(p.seen, event)
	}
}

func (p *Port) answer(id int) Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := Answer{ID: id, Events: p.seen, AtWork: []string{}}
	for run := range p.workers {
		said.AtWork = append(said.AtWork, run)
	}
	p.seen = []Event{}
	return said
}

// Refused shows that a prompt was refused.
func (p *Port) Refused(run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enteredNow(run) // it does not enter
	p.seen = append(p.seen, Event{"event": "refused", "run": run})
}

// Serve answers the kit on the standard streams until its questions end.
func Serve(features []string, dispatcher func(*Port) Dispatcher) error {
	return NewSubject(features, dispatcher).Serve(os.Stdin, os.Stdout)
}

// Serve answers questions, a line each, until they end.
func (s *Subject) Serve(in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(bufio.NewReader(in))
	answers := json.NewEncoder(out)
	for {
		var raw json.RawMessage
		if err := lines.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		q := Question{Raw: raw}
		if err := json.Unmarshal(raw, &q); err != nil {
			return err
		}
		answer, err := s.Ask(q)
		if err != nil {
			return err
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}
