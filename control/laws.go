package control

import (
	"math"
	"slices"
)

// A law says how much slower work becomes, the more of it is inside: its speed at n,
// over its speed alone, is a function of z = n/K. By Little's law throughput is n times
// the speed, so a law of speed is one of throughput. K is the size of the law.

// shape is the form of a law.
type shape uint8

const (
	pool      shape = iota // K at a time, the rest waits: throughput min(n, K)
	soft                   // a pool with a round edge: n/(1+z³)^⅓
	steep                  // every one delays every other, twice over: n/(1+z)², best at K
	coherent               // work that has to agree: n/(1+z²), best at K, falls off faster
	thrashing              // cores that lose a tenth of their work for each time K too many
	shapes
)

// usual is how likely each shape is before anything was seen. Plain pools are the most
// common thing behind a gate. The others share the rest by how often they are met.
var usual = [shapes]float64{pool: 0.30, soft: 0.20, steep: 0.20, coherent: 0.12, thrashing: 0.18}

// shapeNames are the shapes in metrics and documents.
var shapeNames = [shapes]string{pool: "pool", soft: "soft_pool", steep: "contention", coherent: "coherence", thrashing: "thrashing"}

// Shapes lists the values of [Estimate].Shape.
func Shapes() []string { return slices.Clone(shapeNames[:]) }

// shapeWords are what people call a backend of each shape, with its size.
var shapeWords = [shapes]string{
	pool:      "a pool of about %.0f",
	soft:      "a pool of about %.0f with a soft edge",
	steep:     "contention, best at about %.0f",
	coherent:  "coherence, best at about %.0f",
	thrashing: "about %.0f cores that thrash",
}

// lnSpeed returns ln of the speed at lnZ = ln(n/K).
func (s shape) lnSpeed(lnZ float64) float64 {
	z := math.Exp(lnZ)
	switch s {
	case soft:
		return -math.Log1p(z*z*z) / 3
	case steep:
		return -2 * math.Log1p(z)
	case coherent:
		return -math.Log1p(z * z)
	case thrashing:
		return min(0, -lnZ) - math.Log1p(0.1*max(0, z-1))
	}
	return min(0, -lnZ)
}

// The grid of laws. A step of 0.15 in ln K is less than a swing to one side. 64 sizes reach from
// 1 to 12,700, which is more than the default Max.
const (
	sizes    = 64
	sizeStep = 0.15
	laws     = int(shapes) * sizes // law i has the shape i/sizes and the size i%sizes
)

// lnSize is ln K of the size i.
func lnSize(i int) float64 { return sizeStep * float64(i) }

const lnLargest = sizeStep * (sizes - 1)

// lnBest is ln of the best concurrency by a law.
func lnBest(law int) float64 { return lnSize(law%sizes) + bestZ[law/sizes] }

// The table of ln speed has four cells for each step of sizes. So one offset and one fraction
// serve all sizes of a shape. At the least z of the table work is as good as alone.
const (
	fine     = 4
	cellStep = sizeStep / fine
	lowCells = 40 * fine // 40 steps below K: z = 0.0025
	cells    = lowCells + (sizes+2)*fine
)

var speeds = tabulate()

func tabulate() *[shapes][cells + 1]float32 {
	var t [shapes][cells + 1]float32
	for s := range shapes {
		for i := range t[s] {
			t[s][i] = float32(s.lnSpeed(cellStep * float64(i-lowCells)))
		}
	}
	return &t
}

// at is a concurrency, as an offset into the table.
type at struct {
	cell     int // of the smallest size
	fraction float32
}

func locate(lnN float64) at {
	x := min(max(lnN, 0), lnSize(sizes))/cellStep + lowCells
	cell := int(x)
	return at{cell, float32(x - float64(cell))}
}

// lnSpeed returns ln of the speed that a law has there.
func (a at) lnSpeed(law int) float32 {
	s, i := law/sizes, law%sizes
	cell := a.cell - fine*i
	if cell < 0 {
		return 0
	}
	row := &speeds[s]
	return row[cell] + a.fraction*(row[cell+1]-row[cell])
}

// price is the elasticity of throughput below which a slot is not worth having: one per cent
// more slots have to bring 0.045 % more throughput. Otherwise a soft edge has no end.
const price = 0.045

// bestZ is ln z of the best concurrency, for each shape.
var bestZ = bests()

func bests() (best [shapes]float64) {
	for s := range shapes {
		most := math.Inf(-1)
		for lnZ := -3.0; lnZ <= 3; lnZ += 0.01 {
			if worth := (1-price)*lnZ + s.lnSpeed(lnZ); worth > most {
				best[s], most = lnZ, worth
			}
		}
	}
	return best
}
