package port_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turngate.example/port"
)

const minimal = "../../vectors/minimal.jsonl"

func TestARightDispatcherShowsWhatEveryVectorAllows(t *testing.T) {
	played, differences, err := port.NewSubject(features, right).PlayAll(minimal)
	if err != nil {
		t.Fatal(err)
	}
	if played < 5 {
		t.Errorf("only %d vectors were played", played)
	}
	for _, each := range differences {
		t.Error(each)
	}
}

func TestAWrongDispatcherDiffersWhereAVectorRefutesIt(t *testing.T) {
	wrong := map[string]func(*port.Port) port.Dispatcher{"stranded-queue": stranded, "keeps-the-queue": keeping}
	for design, dispatcher := range wrong {
		subject := port.NewSubject(features, dispatcher)
		vectors, err := port.ReadVectors(minimal)
		if err != nil {
			t.Fatal(err)
		}
		refuting := 0
		for _, vector := range vectors {
			if _, is := vector.Refutes[design]; !is || !subject.CanPlay(vector) {
				continue
			}
			refuting++
			if difference, err := subject.Play(vector); err != nil || difference == nil {
				t.Errorf("%s: %s shows no difference (%v)", design, vector.Program, err)
			} else if !strings.HasPrefix(difference.String(), vector.Program) {
				t.Error(difference)
			}
		}
		if refuting == 0 {
			t.Errorf("no vector refutes %s", design)
		}
	}
}

func TestVectorsOfAnotherVersionAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "v.jsonl")
	if err := os.WriteFile(path, []byte(`{"vectors": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := port.ReadVectors(path); err == nil || !strings.Contains(err.Error(), "version 2, not 1") {
		t.Error(err)
	}
}
