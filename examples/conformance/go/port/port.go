// Package port speaks the JSON lines of the conformance kit for a dispatcher written in Go.
//
// A dispatcher starts its goroutines with Go and does the work of a turn with Work. So the port knows when
// nothing moves any more: that is when it answers. It finds out by itself when a run enters and when a turn
// starts; the dispatcher tells it of RunCompletes, folds and messages where a caller would learn of them.
package port

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
)

// Dispatcher is what is put to the test.
type Dispatcher interface {
	Accept(session, run string)
	Enter(run string)
	Cancel(session string)
	Clear(session string)
}

type question struct {
	ID               int
	Op, Session, Run string
}

type answer struct {
	ID       int              `json:"id"`
	Features []string         `json:"features,omitempty"`
	Events   []map[string]any `json:"events"`
	AtWork   []string         `json:"at_work"`
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
	entering map[string]bool
	workers  map[string]*worker
	seen     []map[string]any
}

func newPort() *Port {
	p := &Port{entering: map[string]bool{}, workers: map[string]*worker{}, seen: []map[string]any{}}
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
	p.show(run, "active", map[string]any{"event": "handoff", "run": run})
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
	p.entering[run] = true
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
	p.show(run, "", map[string]any{"event": "wrote", "run": run, "reason": reason})
}

// Folded shows that a queued run has joined the turn of another.
func (p *Port) Folded(run, into string) {
	p.show(run, "", map[string]any{"event": "fold", "run": run, "into": into})
}

// Complete shows the RunComplete of a run.
func (p *Port) Complete(run string, cancelled bool, err error) {
	event := map[string]any{"event": "complete", "run": run, "cancelled": cancelled}
	if err != nil && !cancelled {
		event["error"] = err.Error()
	}
	p.show(run, "", event)
}

// show appends an event; or, if the run is entering just now and this is what it enters, its entry.
func (p *Port) show(run, state string, event map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state != "" && p.entering[run] {
		delete(p.entering, run)
		event = map[string]any{"event": "enter", "run": run, "state": state}
	}
	if event != nil {
		p.seen = append(p.seen, event)
	}
}

func (p *Port) answer(id int) answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := answer{ID: id, Events: p.seen, AtWork: []string{}}
	for run := range p.workers {
		said.AtWork = append(said.AtWork, run)
	}
	p.seen = []map[string]any{}
	return said
}

// Serve answers the kit until its questions end.
func Serve(features []string, dispatcher func(*Port) Dispatcher) {
	var p *Port
	var d Dispatcher
	out := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			panic(err)
		}
		switch q.Op {
		case "hello":
			out.Encode(answer{ID: q.ID, Features: features})
			continue
		case "reset":
			p = newPort()
			d = dispatcher(p)
		case "accept":
			d.Accept(q.Session, q.Run)
		case "enter":
			p.enters(q.Run)
			d.Enter(q.Run)
		case "cancel":
			d.Cancel(q.Session)
		case "clear":
			d.Clear(q.Session)
		default:
			p.tell(q.Run, q.Op)
		}
		p.rest()
		if q.Op == "enter" {
			p.show(q.Run, "queued", nil)
		}
		out.Encode(p.answer(q.ID))
	}
}
