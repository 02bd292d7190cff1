package gate

import (
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Whoever asks why a limit is what it is after a change of settings hears whether it was learned.
func TestReasonAfterReplace(t *testing.T) {
	aimd := func() control.Controller { return weir.Must(control.NewAIMD(control.AIMDConfig{Initial: 50})) }
	knee := func() control.Controller { return weir.Must(control.NewKnee(control.KneeConfig{})) }
	kept := aimd()
	const learned, configured = "goes on from what was learned", "configured"
	for _, tt := range []struct {
		name      string
		old, next control.Controller
		want      string
	}{
		{"the same kind", aimd(), aimd(), learned},
		{"the same controller", kept, kept, learned},
		{"another kind that learns", aimd(), knee(), learned},
		{"from a fixed limit", control.Fixed(20), aimd(), configured},
		{"to a fixed limit", aimd(), control.Fixed(20), configured},
		{"a fixed limit as before", control.Fixed(20), control.Fixed(20), configured},
	} {
		s := Sizer{Controller: tt.old}
		if first, err := s.Replace(tt.next, nil, 20); err != nil || first.Reason != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, first.Reason, err, tt.want)
		}
	}
}
