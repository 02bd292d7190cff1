package setting_test

import (
	"errors"
	"testing"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

func decode(text string, into any) error {
	var faults fault.List
	if root := setting.ParseJSON([]byte(text), &faults); root != nil {
		setting.Decode(root, into, &faults)
	}
	return faults.Err("")
}

func TestDecodeTakesEmbeddedStructs(t *testing.T) {
	type scenario struct {
		Seed uint64 `json:"seed"`
		policy.Spec
		On     bool    `json:"on"`
		Hidden int     `json:"-"`
		Factor float32 `json:"factor"`
	}
	var s scenario
	if err := decode(`{"seed": 7, "routes": [{"name": "r"}], "on": true, "factor": 1.5}`, &s); err != nil {
		t.Fatal(err)
	}
	if s.Seed != 7 || len(s.Routes) != 1 || !s.On || s.Factor != 1.5 {
		t.Errorf("got %+v", s)
	}
	err := decode(`{"seed": -7, "hidden": 1, "on": "yes"}`, &s)
	var faults *fault.Faults
	if !errors.As(err, &faults) || len(faults.List) != 3 {
		t.Errorf("got %v", err)
	}
}

// A JSON document ends with its value, and its names are the program's own affair.
func TestDecodeJSON(t *testing.T) {
	var spec policy.Spec
	if err := decode(`{"gates": {"api.v1": {"limit": {"limit": 5}}}} `+"\n", &spec); err != nil {
		t.Error(err)
	}
	for _, end := range []string{",,,::", "{}", "x", `"`} {
		if err := decode(`{"gates": {}}`+end, &spec); err == nil {
			t.Errorf("%q after the end is accepted", end)
		}
	}
}
