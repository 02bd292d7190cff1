package config

// limitForm is what a limit of a quota looks like.
const limitForm = "a limit such as 10/s, 10/s burst 20, 1000/h or 5000 a day Europe/Berlin"

// quotaFields are those of quotas.
var quotaFields = map[string]field{
	"QuotaLimitSpec.rate": {form: limitForm, doc: "One limit: so many tokens come back in each s, min, h or duration (5/10s), all the time, and by default as many may be taken at once. 5000 a day: all of them come back at midnight, UTC unless a time zone follows; hour, week and month are the others.", example: "10/s"},
	"QuotaLimitSpec.burst": {
		doc: "The most tokens that a bucket holds, if not what the rate says. It starts full.", example: "20", least: "0", most: "1000000000000000",
	},
	"QuotaLimitSpec.limits": {form: limitForm, doc: "Several limits instead of a rate, eight at most: tokens are taken from all of them or from none. Leave them in order when changing one.", example: `["10/s burst 20", 1000/h]`},

	"QuotaSpec.by": {
		doc:     "Whom the limits are for: each user, client, tenant, route, priority or address (IPv6: /64) has buckets of its own; of several words, each combination. Left out, all work shares one bucket.",
		example: "[user]", form: "one of user, client, tenant, route, priority, address",
	},
	"QuotaSpec.rules": {
		doc:     "Quotas of some, beside by and its limits or instead. The most exact rule that matches counts, compared by user, then client, tenant, route, priority and address. Whom none matches is not limited.",
		example: "[{user: alice, rate: 50/s}]",
	},
	"QuotaSpec.count":          {doc: "What a token is: cost is what a request costs by its route (cost, cost_from, settle), requests makes each request one, whatever it costs to other gates.", def: "cost", enum: []string{"cost", "requests"}},
	"QuotaSpec.debt":           {doc: "Let work through iff its bucket is not in debt, whatever the work costs, and let it be paid back afterwards (as Kafka does). Without it there have to be as many tokens as it costs.", def: "false"},
	"QuotaSpec.permissive":     {doc: "Refuse nothing, but charge everything, into debt if need be.", def: "false"},
	"QuotaSpec.queue":          {doc: "Let work wait for its tokens, where this gate is the last of the route.", example: "{len: 100, max_wait: 1s}"},
	"QuotaSpec.store":          {doc: "One of stores, which keeps the buckets for several gateways. Left out, they are in the memory of this one.", example: "shared"},
	"QuotaSpec.on_store_error": {doc: "What to do when the store cannot tell: local goes by buckets in the memory of this gateway, which start full; open lets everything through, but goes by memory too while answers are only late or too many questions are under way; closed refuses.", def: "local", enum: []string{"local", "open", "closed"}},
	"QuotaSpec.max_keys": {
		doc: "Buckets in the memory of this gateway, of up to 40 bytes each; a key has one for each of its limits. What does not fit shares one, which fails closed. 0 means the default. A gate whose bound is changed begins with full buckets.",
		def: "1048576", least: "0", most: "268435456",
	},
	"QuotaSpec.headers": {doc: "What answers tell the client: ratelimit is RateLimit and RateLimit-Policy, legacy X-RateLimit-Limit, -Remaining and -Reset.", def: "ratelimit", enum: []string{"ratelimit", "legacy", "both", "none"}},
	"QuotaSpec.unit":    {doc: "What RateLimit-Policy says that a token is, where routes cost something else than requests. It changes nothing of what is counted.", def: "requests", enum: []string{"requests", "content-bytes"}},

	"QuotaQueueSpec.len":      {doc: "How much work may wait. 0 means that nothing waits.", def: "0", least: "0", most: "1000000"},
	"QuotaQueueSpec.max_wait": {doc: "How long work may wait. 0 means the default. What would have to wait longer is refused at once.", def: "2s", least: "0s", minusOne: "only the work's own deadline counts"},

	"QuotaRuleSpec.name":     {doc: "What refusals call the rule. Left out, it is what the rule matches.", example: "trial"},
	"QuotaRuleSpec.user":     {doc: `The user that the rule is about, or "*": each has a bucket of its own.`, example: "alice"},
	"QuotaRuleSpec.client":   {doc: "The same for the client.", example: "importer"},
	"QuotaRuleSpec.tenant":   {doc: "The same for the tenant.", example: "acme"},
	"QuotaRuleSpec.route":    {doc: "The same for the route, by its name.", example: "batches"},
	"QuotaRuleSpec.priority": {doc: "The same for the priority.", example: "background"},
	"QuotaRuleSpec.address":  {doc: "The same for the address that the request comes from; also a network, whose addresses share a bucket.", example: "10.0.0.0/8"},
	"QuotaRuleSpec.exempt":   {doc: "Do not count them at all, instead of a limit.", def: "false"},
	"QuotaRuleSpec.blocked":  {doc: "Refuse all of them, instead of a limit.", def: "false"},
}
