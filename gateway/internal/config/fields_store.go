package config

// storeFields are those of servers that keep the buckets of quotas.
var storeFields = map[string]field{
	"Store.redis": {
		form: "a URL such as redis://127.0.0.1:6379/0",
		doc: "Redis 6 or newer, or Valkey: redis://user@host:6379/0, rediss:// with TLS, or unix:///run/redis.sock; more nodes of a cluster, or sentinels, as ?addr=host:6379. " +
			"No password. Its maxmemory-policy must be noeviction.",
		example: "redis://127.0.0.1:6379/0", required: true,
	},
	"Store.sentinel":           {doc: "What to ask the sentinels for, if the URL names those.", example: "{master: main}"},
	"Store.tls":                {doc: "Whom to believe, and as whom to come, with rediss://. Left out, the authorities of the system vouch for the server.", example: "{}"},
	"Store.prefix":             {doc: "What begins every key, so that several policies can share a server without sharing buckets.", def: `"weir:"`},
	"Store.timeout":            {doc: "How long a decision may take before on_store_error holds.", def: "50ms", least: "1ms", most: "10s"},
	"Store.connect_timeout":    {doc: "How long connecting may take, and how long a connection may say nothing.", def: "1s", least: "10ms", most: "1m"},
	"Store.max_in_flight":      {doc: "Decisions under way at a time; further ones fail at once.", def: "512", least: "1", most: "10000"},
	"Store.assume_no_eviction": {doc: "Do not ask the server for its maxmemory-policy, where it does not let itself be asked. Under another than noeviction buckets come back full, debts and all.", def: "false"},
	"Store.lease":              {doc: "Take tokens ahead of need, for fewer round trips.", example: "{tokens: 100}"},

	"Secret.password_file": {doc: "File with the password and nothing else, relative to this file. Read again on a reload, and for new connections, at most once a second.", example: "redis.password"},
	"Secret.password_env":  {doc: "Variable of the environment with the password, instead of a file.", example: "QUOTA_PASSWORD"},

	"Sentinel.master":   {doc: "Name of the set of servers.", example: "main", required: true},
	"Sentinel.username": {doc: "User at the sentinels themselves.", example: "weir"},

	"StoreTLS.ca":   {doc: "PEM file with the authorities that vouch for the server, relative to this file, instead of the system's.", example: "ca.pem"},
	"StoreTLS.cert": {doc: "PEM file with the gateway's own certificate.", example: "me.crt"},
	"StoreTLS.key":  {doc: "PEM file with its private key.", example: "me.key"},

	"Lease.tokens": {
		doc: "The most that is held for a key; 0 means no leases. In any time each gateway may let through so many more than the quota, and over a long time nothing.",
		def: "0", least: "0", most: "1000000",
	},
	"Lease.for":      {doc: "How long they are held before they are given back.", def: "1s", least: "10ms", most: "1m"},
	"Lease.max_keys": {doc: "Keys that may have a lease.", def: "10000", least: "1", most: "1000000"},
}
