package live

import "time"

// startUp is about what starting and stopping the processes of a run takes.
const startUp = 400 * time.Millisecond

// Duration is about how long the plan takes if no run is void.
func (p *Plan) Duration() time.Duration {
	var d time.Duration
	if p.wantsPart(partServer) {
		for _, s := range sites() {
			if p.wants(p.Laws, s.law.Name) {
				d += p.onSite(&s)
			}
		}
	}
	if p.wantsPart(partYield) {
		d += 3 * (p.turn(1800*time.Millisecond) + startUp)
	}
	if p.wantsPart(partGateway) {
		for _, u := range upstreams() {
			if p.wants(p.Laws, u.law.Name) {
				d += p.onUpstream(&u)
			}
		}
	}
	if p.wantsPart(partOrder) {
		for _, row := range orderRows() {
			if p.wantsOrder(&row) {
				d += time.Duration(len(p.chosen(row.guards))) * row.length(p)
			}
		}
	}
	return d * time.Duration(p.Rounds)
}

func (p *Plan) onSite(s *site) time.Duration {
	d := 5 * (p.turn(800*time.Millisecond) + startUp) // the sweep
	for _, row := range serverRows() {
		if s.has(row.ID) && p.wants(p.Rows, row.ID) {
			one := row.length(p.turn(s.unit)) + startUp
			for _, g := range s.guards(row.ID, 1) {
				if p.wants(p.Guards, g.Name) {
					d += one
				}
			}
		}
	}
	return d
}

func (p *Plan) onUpstream(u *upstream) (d time.Duration) {
	_, rate := u.law.best()
	for _, row := range gatewayRows() {
		if !p.wants(u.rows, row.ID) || !p.wants(p.Rows, row.ID) {
			continue
		}
		one := row.length(p.turn(u.unit)) + u.patience(row.Impatient) + startUp
		if n := len(p.chosen(proxies(row.ID))); row.peak()*rate*float64(n) > sideBySide {
			one *= time.Duration(n)
		}
		d += one
	}
	return d
}
