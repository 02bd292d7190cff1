package config

// routeFields are those by which requests and answers say what they are.
var routeFields = map[string]field{
	"RouteSpec.cost_from": {
		form: "header:NAME", example: "header:X-Cost",
		doc: "Header in which a trusted peer says how many slots, and tokens of quotas, its request takes, a whole number from 1, instead of cost; of several the largest. " +
			"Anything else counts as ignored: where a quota would be charged for it the request is refused with 400, elsewhere cost holds. A gate with a limit takes no more than all of it, or refuses with refuse_oversize.",
	},
	"RouteSpec.settle": {
		form: "header:NAME", example: "header:X-Actual-Cost",
		doc: "Header of the upstream's answer, or else of its trailer, that says what the request has really cost, a whole number from 0; of several the largest. A quota charges the difference, or gives it back; a gate with one limit settles the difference " +
			"with the tenant's share of the next turns; one with each changes what the key holds, at least 1. The client does not see the header.",
	},
	"RouteSpec.access": {
		doc:     "Which pool the work needs of a gate that has one for reads and one for writes (probe: {read_write: true}). Left out, GET, HEAD, OPTIONS and TRACE read, and everything else writes.",
		enum:    []string{"read", "write"},
		example: "read",
	},
	"RouteSpec.demote_after": {
		doc:     "After how many admissions the work of an operation counts as background, and is passed on as such. identity.admissions says how many there have been. Left out, never; exempt and critical work never is.",
		example: "3", least: "1", most: "1000000",
	},
	"IdentitySpec.admissions": {
		form: "header:NAME", example: "header:X-Admissions",
		doc: "Header in which a trusted peer says how often the operation that its request is part of has been admitted before, for demote_after. " +
			"The upstream is told one more. Anything but a whole number counts as ignored.",
	},
	"RouteSpec.settle_keep": {doc: "Let the client see the header of settle.", def: "false"},
}
