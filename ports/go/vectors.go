package port

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
)

const version = 1

// Vector is a program, and what may be seen after each of its operations.
type Vector struct {
	Program string            `json:"program"`
	Feature string            `json:"feature"`
	Needs   []string          `json:"needs"`
	Guards  []string          `json:"guards"`
	Refutes map[string]string `json:"refutes"`
	Steps   []json.RawMessage `json:"steps"`
}

// Difference is where a subject shows what a vector does not allow.
type Difference struct {
	Program string
	Nth     int
	May     [][]Event
	Shown   []Event
}

func (d Difference) String() string {
	may, _ := json.Marshal(d.May)
	shown, _ := json.Marshal(d.Shown)
	return fmt.Sprintf("%s: after operation %d one of %s may be seen, and %s is", d.Program, d.Nth+1, may, shown)
}

// ReadVectors returns the vectors of a file that turngate vectors has written.
func ReadVectors(path string) ([]Vector, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := json.NewDecoder(bufio.NewReader(file))
	var heading struct{ Vectors int }
	if err := lines.Decode(&heading); err != nil {
		return nil, err
	}
	if heading.Vectors != version {
		return nil, fmt.Errorf("%s has vectors of version %d, not %d", path, heading.Vectors, version)
	}
	vectors := []Vector{}
	for lines.More() {
		var vector Vector
		if err := lines.Decode(&vector); err != nil {
			return nil, err
		}
		vectors = append(vectors, vector)
	}
	return vectors, nil
}

// CanPlay tells whether the subject has every feature that a vector needs.
func (s *Subject) CanPlay(vector Vector) bool {
	for _, each := range vector.Needs {
		if !s.Has(each) {
			return false
		}
	}
	return true
}

// Play plays a vector on a fresh dispatcher. It returns nil, or the first difference.
func (s *Subject) Play(vector Vector) (*Difference, error) {
	needs := Subject{Features: vector.Needs}
	if _, err := s.Ask(Question{Op: "reset"}); err != nil {
		return nil, err
	}
	for nth, raw := range vector.Steps {
		q := Question{Raw: raw}
		var step struct{ May [][]Event }
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &step); err != nil {
			return nil, err
		}
		shown, err := s.seen(q)
		if err != nil {
			return nil, err
		}
		if takesIn(q.Op) && s.Has("two_phase") && !needs.Has("two_phase") && !has(shown, "refused") {
			entered, err := s.seen(Question{Op: "enter", Run: q.Run})
			if err != nil {
				return nil, err
			}
			shown = append(shown, entered...)
		}
		shown = without(shown, "given")
		if !needs.Has("messages") {
			shown = without(shown, "wrote")
		}
		if !allowed(step.May, shown) {
			return &Difference{vector.Program, nth, step.May, shown}, nil
		}
	}
	return nil, nil
}

// PlayAll plays the vectors of a file that the subject can play. It returns how many they were, and the differences.
func (s *Subject) PlayAll(path string) (played int, differences []Difference, err error) {
	vectors, err := ReadVectors(path)
	if err != nil {
		return 0, nil, err
	}
	for _, vector := range vectors {
		if !s.CanPlay(vector) {
			continue
		}
		played++
		difference, err := s.Play(vector)
		if err != nil {
			return played, differences, fmt.Errorf("%s: %w", vector.Program, err)
		}
		if difference != nil {
			differences = append(differences, *difference)
		}
	}
	return played, differences, nil
}

// seen asks, and returns the events as they look after a way through JSON, like those of a vector.
func (s *Subject) seen(q Question) ([]Event, error) {
	answer, err := s.Ask(q)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(answer.Events)
	if err != nil {
		return nil, err
	}
	var events []Event
	return events, json.Unmarshal(text, &events)
}

// allowed tells whether the same events in the same order may be seen; an event may have other keys besides.
func allowed(may [][]Event, shown []Event) bool {
	for _, should := range may {
		same := len(should) == len(shown)
		for nth := 0; same && nth < len(should); nth++ {
			for key, value := range should[nth] {
				same = same && reflect.DeepEqual(shown[nth][key], value)
			}
		}
		if same {
			return true
		}
	}
	return false
}

func has(events []Event, kind string) bool { return len(without(events, kind)) < len(events) }

func without(events []Event, kind string) []Event {
	left := []Event{}
	for _, each := range events {
		if each["event"] != kind {
			left = append(left, each)
		}
	}
	return left
}
