package port_test

import (
	"context"
	"errors"
	"sync"

	"turngate.example/port"
)

// queue is a dispatcher with one phase, for the tests; strands makes it forget its queue when a turn fails, and
// keeps makes it leave the queue when it is cancelled.
type queue struct {
	port           *port.Port
	strands, keeps bool
	mu             sync.Mutex
	sessions       map[string]*lane
}

type lane struct {
	waiting []string
	stop    context.CancelFunc
}

func right(p *port.Port) port.Dispatcher { return &queue{port: p, sessions: map[string]*lane{}} }

func stranded(p *port.Port) port.Dispatcher {
	return &queue{port: p, strands: true, sessions: map[string]*lane{}}
}

func keeping(p *port.Port) port.Dispatcher {
	return &queue{port: p, keeps: true, sessions: map[string]*lane{}}
}

func (q *queue) lane(session string) *lane {
	if q.sessions[session] == nil {
		q.sessions[session] = &lane{}
	}
	return q.sessions[session]
}

func (q *queue) Accept(session, run string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.lane(session); it.stop != nil {
		it.waiting = append(it.waiting, run)
	} else {
		q.start(it, run)
	}
}

func (q *queue) Cancel(session string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.lane(session)
	if !q.keeps {
		q.drop(it, true, nil)
	}
	if it.stop != nil {
		it.stop()
	}
}

func (q *queue) Clear(session string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(q.lane(session), false, errors.New("cleared from the queue"))
}

func (q *queue) Perform(asked port.Question) bool {
	if asked.Op != "reject" {
		return false
	}
	q.mu.Lock()
	busy := q.lane(asked.Session).stop != nil
	q.mu.Unlock()
	if busy {
		q.port.Refused(asked.Run)
	} else {
		q.Accept(asked.Session, asked.Run)
	}
	return true
}

func (q *queue) drop(it *lane, cancelled bool, err error) {
	for _, run := range it.waiting {
		q.port.Complete(run, cancelled, err)
	}
	it.waiting = nil
}

func (q *queue) start(it *lane, run string) {
	ctx, stop := context.WithCancel(context.Background())
	it.stop = stop
	q.port.Go(func() {
		err := q.port.Work(ctx, run, func() {})
		q.mu.Lock()
		defer q.mu.Unlock()
		cancelled := ctx.Err() != nil
		stop()
		q.port.Complete(run, cancelled, err)
		it.stop = nil
		if len(it.waiting) > 0 && !(q.strands && err != nil && !cancelled) {
			next := it.waiting[0]
			it.waiting = it.waiting[1:]
			q.start(it, next)
		}
	})
}
