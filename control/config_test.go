package control

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// Programs keep configurations as JSON. Nothing that they set gets lost there.
func TestConfigsInJSON(t *testing.T) {
	for _, config := range []any{
		AIMDConfig{}, BeliefConfig{}, CapConfig{}, DrainConfig{}, Gradient2Config{}, KneeConfig{}, LagMapConfig{}, ProbeConfig{},
		ResourceConfig{}, VegasConfig{},
	} {
		of := reflect.TypeOf(config)
		want, got := reflect.New(of), reflect.New(of)
		for i := range of.NumField() {
			switch f := want.Elem().Field(i); {
			case f.CanInt():
				f.SetInt(int64(i + 1))
			case f.CanFloat():
				f.SetFloat(float64(i) + 0.5)
			case f.Kind() == reflect.String:
				f.SetString("x")
			case f.Kind() == reflect.Bool:
				f.SetBool(true)
			case f.Kind() == reflect.Slice:
				f.Set(reflect.ValueOf([]string{"a", "b"}))
			}
		}
		text, err := json.Marshal(want.Interface())
		if err == nil {
			err = json.Unmarshal(text, got.Interface())
		}
		if err != nil || !reflect.DeepEqual(got.Elem().Interface(), want.Elem().Interface()) {
			t.Errorf("%v: %s: %v: %+v became %+v", of, text, err, want, got)
		}
	}
	var cfg AIMDConfig
	if err := json.Unmarshal([]byte(`{"Threshold": 1000000, "Max": 50}`), &cfg); err != nil || cfg.Threshold != time.Millisecond || cfg.Max != 50 {
		t.Errorf("%v: %+v", err, cfg)
	}
}

// Values near the ends of what makes sense are accepted.
func TestWideBounds(t *testing.T) {
	made := func(_ Controller, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	made(NewAIMD(AIMDConfig{Backoff: 0.9995, Percentile: 0.0005}))
	made(NewVegas(VegasConfig{Backoff: 0.0005, Percentile: 0.0005, Alpha: 1 << 30, Beta: 1 << 30}))
	made(NewGradient2(Gradient2Config{Backoff: 0.9995, Percentile: 0.0005, Queue: 1 << 30}))
	made(NewDrain(DrainConfig{Signal: "lag", Adder: 1 << 30, PerWork: 1 << 30}))
	made(NewResource(ResourceConfig{Signals: []string{"cpu"}, Backoff: 0.9995}))
}
