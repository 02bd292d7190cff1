package chart

import (
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
)

// A drawing is well-formed, whatever the figures and the words.
func TestDrawing(t *testing.T) {
	d := Drawing{
		Title: "S<4>", About: `a & "b"`, Axis: "time, s", To: 5,
		Panels: []Panel{{Title: "share", Curves: []Curve{{Values: []float64{0, 3, math.NaN(), 1e5, math.Inf(1)}, Style: "default"}}}, {Title: "none", Log: true, Curves: []Curve{{Values: []float64{0, 0}, Style: "could", Step: true}}}},
		Legend: []Legend{{Style: "default", Text: "one"}},
	}
	svg := d.SVG()
	for dec := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, want := range []string{"time, s", "S&lt;4&gt;", "share", "one"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the drawing", want)
		}
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Errorf("figures that are none:\n%s", svg)
	}
}

// Columns have their names in place of numbers, and points lie where they belong, at most at an edge.
func TestColumnsAndPoints(t *testing.T) {
	d := Drawing{To: 4, Columns: []string{"one", "two", "four", "eight"}, Panels: []Panel{{
		Curves: []Curve{{Values: []float64{1, 2, 4, 8}}},
		Points: []Point{{At: 2.5, Value: 4, Name: "on it"}, {At: 100, Value: 4, Name: "beyond"}, {At: math.NaN(), Value: 4, Name: "nowhere"}},
	}}}
	svg := d.SVG()
	line := regexp.MustCompile(`L([0-9.]+) ([0-9.]+)L[0-9.]+ [0-9.]+"`).FindStringSubmatch(svg) // the third of four
	if line == nil || !strings.Contains(svg, `cx="`+line[1]+`" cy="`+line[2]+`"`) || !strings.Contains(svg, `cx="744.0"`) {
		t.Errorf("points:\n%s", svg)
	}
	for _, name := range d.Columns {
		if !strings.Contains(svg, ">"+name+"<") {
			t.Errorf("no column %s", name)
		}
	}
	if strings.Contains(svg, "nowhere") || strings.Contains(svg, ">2<") && strings.Contains(svg, ">3<") {
		t.Errorf("what is not asked for:\n%s", svg)
	}
}

func TestTicks(t *testing.T) {
	tests := []struct {
		log    bool
		values []float64
		want   []float64
	}{
		{false, []float64{0, 90}, []float64{0, 20, 40, 60, 80, 100}},
		{false, []float64{math.NaN(), 44, math.Inf(1), math.Inf(-1)}, []float64{0, 10, 20, 30, 40, 50}},
		{false, []float64{44}, []float64{0, 10, 20, 30, 40, 50}},
		{false, []float64{0}, []float64{0, 1}},
		{true, []float64{0, 15, 900}, []float64{10, 100, 1000}},
		{true, []float64{100}, []float64{100, 1000}},
	}
	for _, tt := range tests {
		p := Panel{Log: tt.log, Curves: []Curve{{Values: tt.values}}}
		got := p.ticks()
		if len(got) != len(tt.want) || got[len(got)-1] != tt.want[len(got)-1] || got[0] != tt.want[0] {
			t.Errorf("%v: ticks %v, want %v", tt.values, got, tt.want)
		}
	}
}
