package shed

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func TestLevelNames(t *testing.T) {
	for _, c := range []struct {
		level Level
		class int
		text  string
	}{
		{0, 0, "background/0"},
		{127, 0, "background/127"},
		{128, 1, "normal/0"},
		{300, 2, "high/44"},
		{511, 3, "critical/127"},
		{512, 3, "none"},
	} {
		if c.level.Class() != c.class || c.level.String() != c.text {
			t.Errorf("Level(%d) is %q of class %d, want %q of %d", c.level, c.level, c.level.Class(), c.text, c.class)
		}
	}
}

// Names that differ little are spread over the levels as chance would. The
// statistic has 127 degrees of freedom: mean 127, standard deviation 16.
func TestHashSpreads(t *testing.T) {
	const names = 128 * 400
	for _, pattern := range []string{"%d", "user-%06d", "%064d", "aaaaaaaaaaaaaaaa%08d-and-a-tail", "10.0.%d"} {
		var at [users]float64
		for i := range names {
			at[hash(7, fmt.Sprintf(pattern, i))>>57]++
		}
		chi := 0.0
		for _, n := range at {
			chi += (n - names/users) * (n - names/users) / (names / users)
		}
		if chi > 127+5*16 || chi < 127-5*16 {
			t.Errorf("names like %q: chi-squared %.0f over %d levels, want about 127", pattern, chi, users)
		}
	}
}

func TestHashTellsApart(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	seen := map[uint64]string{}
	for _, s := range []string{
		"", "\x00", "\x00\x00", "a", "a\x00", "12345678", "12345678\x00", "123456781234567", "1234567812345678",
		"8765432112345678", "1234567887654321", long, long + "x", long[1:] + "y",
	} {
		h := hash(1, s)
		if other, ok := seen[h]; ok {
			t.Errorf("names of %d and %d bytes have one hash", len(s), len(other))
		}
		seen[h] = s
		if h == hash(2, s) {
			t.Errorf("a name of %d bytes has the same hash with another salt", len(s))
		}
	}
}

// A user gains nothing by naming tenants, and work that names nobody has no hash.
func TestWhoIsNamed(t *testing.T) {
	user, _ := named(5, &weir.Work{User: "u"})
	with, _ := named(5, &weir.Work{User: "u", Tenant: "t"})
	tenant, ok := named(5, &weir.Work{Tenant: "u"})
	if user != with {
		t.Error("a tenant changes the level of a user")
	}
	if !ok || tenant == user {
		t.Error("a tenant must have a level, and another than a user of the same name")
	}
	if _, ok := named(5, &weir.Work{Client: "curl", Op: "GET /"}); ok {
		t.Error("work without user and tenant has a hash")
	}
}

func TestSalter(t *testing.T) {
	today := 20_000 * 24 * time.Hour
	s := salter{secret: 9, period: time.Hour}
	if s.at(today) != s.at(today+time.Hour-1) {
		t.Error("the salt changes within the hour")
	}
	if s.at(today) == s.at(today+time.Hour) {
		t.Error("the salt stays when the hour is over")
	}
	never := salter{secret: 9, period: -1}
	if never.at(0) != never.at(1000*time.Hour) {
		t.Error("the salt changes although it never should")
	}
	if s.at(today) == (salter{secret: 10, period: time.Hour}).at(today) {
		t.Error("another secret gives the same salt")
	}
}

// Instances agree on levels also when the clock of one has stood still, as that of Linux does while a machine is suspended.
func TestLevelsGoByTheTimeOfDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Name: "g", Pressure: known(0), Interval: time.Second, Salt: 7, Resalt: time.Minute}
		slept, other := weir.Must(New(cfg)), weir.Must(New(cfg))
		defer slept.Close()
		defer other.Close()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		slept.mu.Lock()
		slept.publish(0) // by its clock no time has passed
		slept.mu.Unlock()
		for i := range 100 {
			if w := (weir.Work{User: fmt.Sprint("user-", i)}); slept.LevelOf(w) != other.LevelOf(w) {
				t.Fatalf("%s has level %v at one gate and %v at the other", w.User, slept.LevelOf(w), other.LevelOf(w))
			}
		}
	})
}

// A new configuration without a Salt keeps the one in force, and has its own Resalt.
func TestReconfigureKeepsTheSalt(t *testing.T) {
	now := 100 * time.Minute
	cfg := Config{Name: "g", Pressure: known(0), Salt: 7, Resalt: -1, Now: func() time.Duration { return now }}
	s := weir.Must(New(cfg))
	defer s.Close()
	levels := func() (all [100]Level) {
		for i := range all {
			all[i] = s.LevelOf(weir.Work{User: fmt.Sprint("user-", i)})
		}
		return all
	}
	before := levels()
	cfg.Salt = 0
	if err := s.Reconfigure(cfg); err != nil || levels() != before {
		t.Errorf("a Salt of 0 has changed the levels; %v", err)
	}
	cfg.Resalt = time.Minute
	if err := s.Reconfigure(cfg); err != nil || levels() == before {
		t.Errorf("a new Resalt has changed no level; %v", err)
	}
}
