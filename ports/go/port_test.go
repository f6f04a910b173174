package port_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"turngate.example/port"
)

var features = []string{"cancel", "clear", "reject"}

func kinds(events []port.Event) string {
	told := []string{}
	for _, each := range events {
		told = append(told, each["event"].(string)+" "+each["run"].(string))
	}
	return strings.Join(told, ", ")
}

func ask(t *testing.T, subject *port.Subject, q port.Question) port.Answer {
	t.Helper()
	answer, err := subject.Ask(q)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAQueuedRunBecomesActiveWhenTheTurnBeforeItFails(t *testing.T) {
	subject := port.NewSubject(features, right)
	ask(t, subject, port.Question{Op: "reset"})
	if got := ask(t, subject, port.Question{Op: "accept", Session: "s", Run: "a"}).Events; got[0]["state"] != "active" {
		t.Errorf("a is shown as %v", got)
	}
	if got := ask(t, subject, port.Question{Op: "accept", Session: "s", Run: "b"}).Events; got[0]["state"] != "queued" {
		t.Errorf("b is shown as %v", got)
	}
	answer := ask(t, subject, port.Question{ID: 7, Op: "fail", Run: "a"})
	if got := kinds(answer.Events); answer.ID != 7 || got != "complete a, handoff b" {
		t.Errorf("answer %d: %s", answer.ID, got)
	}
	if !reflect.DeepEqual(answer.AtWork, []string{"b"}) {
		t.Errorf("at work: %v", answer.AtWork)
	}
}

func TestACancelInterruptsTheTurnAndDropsTheQueue(t *testing.T) {
	subject := port.NewSubject(features, right)
	for _, q := range []port.Question{{Op: "reset"}, {Op: "accept", Session: "s", Run: "a"}, {Op: "accept", Session: "s", Run: "b"}} {
		ask(t, subject, q)
	}
	answer := ask(t, subject, port.Question{Op: "cancel", Session: "s"})
	if got := kinds(answer.Events); got != "complete b, complete a" {
		t.Error(got)
	}
}

func TestABurstIsCalledWithoutARestInBetween(t *testing.T) {
	subject := port.NewSubject(append(features, "bursts"), right)
	ask(t, subject, port.Question{Op: "reset"})
	ops := []port.Question{{Op: "accept", Session: "s", Run: "a"}, {Op: "accept", Session: "s", Run: "b"}, {Op: "cancel", Session: "s"}}
	told := kinds(ask(t, subject, port.Question{Op: "burst", Ops: ops}).Events)
	if strings.Count(told, "complete") != 2 || strings.Contains(told, "enter b") {
		t.Error(told)
	}
	ask(t, subject, port.Question{Op: "reset"})
	told = kinds(ask(t, subject, port.Question{Op: "burst", Ops: ops[:2]}).Events)
	if told != "enter a, enter b" {
		t.Error(told)
	}
}

func TestAnOperationThatOnlySomeDispatchersHave(t *testing.T) {
	subject := port.NewSubject(features, right)
	ask(t, subject, port.Question{Op: "reset"})
	ask(t, subject, port.Question{Op: "accept", Session: "s", Run: "a"})
	if got := kinds(ask(t, subject, port.Question{Op: "reject", Session: "s", Run: "b"}).Events); got != "refused b" {
		t.Error(got)
	}
	if _, err := subject.Ask(port.Question{Op: "crash"}); err == nil || !strings.Contains(err.Error(), `no operation "crash"`) {
		t.Error(err)
	}
}

func TestAQuestionBeforeAnyDispatcherIsAnError(t *testing.T) {
	if _, err := port.NewSubject(features, right).Ask(port.Question{Op: "accept"}); err == nil {
		t.Error("no error")
	}
}

func TestServedItAnswersEachLineWithOneLine(t *testing.T) {
	in := strings.NewReader(`{"id": 1, "op": "hello", "port": 1}
{"id": 2, "op": "reset"}
{"id": 3, "op": "accept", "session": "s", "run": "a"}
`)
	out := &bytes.Buffer{}
	if err := port.NewSubject(features, right).Serve(in, out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatal(lines)
	}
	for nth, line := range lines {
		var answer port.Answer
		if err := json.Unmarshal([]byte(line), &answer); err != nil || answer.ID != nth+1 {
			t.Errorf("%s: %v", line, err)
		}
	}
	if !strings.Contains(lines[0], `"features":["cancel","clear","reject"]`) {
		t.Error(lines[0])
	}
}

func TestALineThatIsNotJSONIsAnError(t *testing.T) {
	if err := port.NewSubject(features, right).Serve(strings.NewReader("accept a\n"), &bytes.Buffer{}); err == nil {
		t.Error("no error")
	}
}
