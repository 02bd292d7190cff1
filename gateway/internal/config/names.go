package config

import (
	"strings"

	"github.com/weir-go/weir/internal/fault"
)

// What has no field here.
const (
	noRewrites  = "remove it: weir passes requests on as they are"
	noRetries   = "remove it: weir sends a request to another target only where nothing was sent before"
	noIssuing   = "remove it: weir gets no certificates; name the PEM files under tls: cert: and key:"
	noEncoding  = "remove it: weir passes answers on as they are"
	oneFile     = "remove it: weir reads one file, and again when it changes"
	refusals    = "remove it: a quota answers 429, a limit 503"
	healthMade  = "write health_check: {path: /healthz}"
	silences    = "write response_timeout: 30s until an answer begins, and response_idle_timeout: 60s within it"
	ejection    = "write passive_health: {failures: 5, for: 10s}"
	balanced    = "write balance: least_loaded, or balance: round_robin"
	quotaForm   = "write rate: 10/s, and by: [address] or by: [user] for a quota each"
	routeForm   = "write routes: [{match: [/], upstream: app}]"
	upForm      = "write upstreams: {app: {targets: [http://127.0.0.1:3000]}}"
	listenForm  = "write listeners: [{address: \":8080\"}]"
	gateForm    = "write gates: {api: {limit: auto}}, and gates: [api] in a route"
	targetForm  = "write targets: [http://127.0.0.1:3000]"
	matchForm   = "write match: [/v1/]"
	nameForm    = "write upstream: and a name from upstreams"
	leaving     = "write it in the upstream: upstreams: {app: {on_client_disconnect: release}}"
	brokersForm = "write bootstrap: [127.0.0.1:9092]"
	saslForm    = "write sasl: {mechanism: scram-sha-512, user: weir, password_file: kafka.password}"
	inPatterns  = "write it before the path in match: [example.com/]"
)

// elsewhere is what to write for the words of nginx, Caddy, Traefik, Envoy and HAProxy. It is found
// by the group where they stand, and the word in small letters without dashes, dots and underscores.
var elsewhere = map[string]map[string]string{
	"": {
		"http": "remove this level: " + strings.TrimPrefix(listenForm, "write ") + ", upstreams: and routes: stand at the top", "server": listenForm, "servers": listenForm,
		"frontend": listenForm, "frontends": listenForm, "entrypoints": listenForm, "listen": listenForm, "bind": listenForm,
		"services": upForm, "service": upForm, "clusters": upForm, "cluster": upForm, "backend": upForm, "backends": upForm, "staticresources": upForm, "target": upForm, "targets": upForm,
		"defaultbackend": routeForm, "virtualhosts": routeForm, "locations": routeForm, "location": routeForm, "routers": routeForm, "rules": routeForm, "usebackend": routeForm, "acl": routeForm,
		"middlewares": gateForm, "ratelimit": gateForm, "ratelimits": gateForm, "limits": gateForm, "overloadmanager": gateForm,
		"global": "remove this level, and see weir init --full for what there is", "mode": "remove it: weir speaks HTTP; the mode of a gate stands in the gate",
		"workerconnections": "write max_connections: 1024 in a listener", "maxconn": "write max_connections: 4096 in a listener", "workerprocesses": "remove it: weir uses all processors",
		"nbthread": "remove it: weir uses all processors", "errorlog": "write log: {level: info}; the log goes to standard error", "loglevel": "write log: {level: info}",
		"autohttps": noIssuing, "certificatesresolvers": noIssuing, "graceperiod": "write shutdown: {grace: 10s}", "stats": "write admin: {address: 127.0.0.1:8090}; it serves /metrics",
		"api": "write admin: {address: 127.0.0.1:8090}; weir status shows what it serves", "dashboard": "write admin: {address: 127.0.0.1:8090}; weir status shows what it serves",
		"trustedproxies": "write it below identity", "providers": oneFile, "include": oneFile, "import": oneFile,
		"keepalivetimeout": "write idle_timeout: 75s in a listener", "encode": noEncoding, "gzip": noEncoding, "ping": "write admin: {address: 127.0.0.1:8090}; it serves /healthz", "httpfilters": gateForm,
	},
	"route": {
		"retry": noRetries, "headerup": noRewrites, "headerdown": noRewrites, "header": noRewrites, "encode": noEncoding, "import": oneFile, "circuitbreaker": "write gates: [api], and the limit in gates: {api: {limit: auto}}",
		"proxypass": nameForm, "reverseproxy": nameForm, "service": nameForm, "cluster": nameForm, "backend": nameForm, "usebackend": nameForm, "to": nameForm, "route": nameForm, "target": nameForm,
		"path": matchForm, "paths": matchForm, "prefix": matchForm, "location": matchForm, "rule": matchForm, "handle": matchForm, "handlepath": matchForm, "pattern": matchForm, "uri": matchForm, "matcher": matchForm, "pathprefix": matchForm,
		"host": inPatterns, "hosts": inPatterns, "domains": inPatterns, "servername": inPatterns, "method": "write it before the path in match: [\"POST /orders\"]", "methods": "write it before the path in match: [\"POST /orders\"]",
		"middlewares": "write gates: [api]", "filters": "write gates: [api]", "plugins": "write gates: [api]", "gate": "write gates: [api]", "limit": "write gates: [api], and the limit in gates: {api: {limit: auto}}",
		"retrypolicy": noRetries, "retries": noRetries, "prefixrewrite": noRewrites, "rewrite": noRewrites, "stripprefix": noRewrites, "headers": noRewrites, "redirect": noRewrites, "onclientdisconnect": leaving,
	},
	"upstream": {
		"keepalive": "write max_idle_connections: 32", "keepalivetimeout": "write idle_timeout: 60s", "leastconn": "write balance: least_loaded", "headerup": noRewrites, "headerdown": noRewrites, "lbretries": noRetries, "lbtryduration": noRetries, "retry": noRetries,
		"sticky": "remove it: any target may get a request", "iphash": "remove it: any target may get a request", "circuitbreaker": "write limit: 30, and passive_health: {failures: 5, for: 10s}",
		"server": targetForm, "servers": targetForm, "url": targetForm, "urls": targetForm, "to": targetForm, "dial": targetForm, "address": targetForm, "addresses": targetForm, "host": targetForm, "hosts": targetForm,
		"target": targetForm, "endpoints": targetForm, "endpoint": targetForm, "loadassignment": targetForm, "loadbalancer": targetForm, "proxypass": targetForm, "upstreams": targetForm, "backend": targetForm,
		"maxfails": "write passive_health: {failures: 3}", "failtimeout": "write passive_health: {for: 30s}", "failduration": "write passive_health: {for: 30s}", "outlierdetection": ejection,
		"healthchecks": healthMade, "healthuri": healthMade, "httpchk": healthMade, "check": healthMade, "health": healthMade,
		"maxconn": "write limit: 30, for requests at a time at each target", "maxrequests": "write limit: 30, for requests at a time at each target",
		"circuitbreakers": "write limit: 30, for requests at a time at each target", "maxinflight": "write limit: 30, for requests at a time at each target",
		"streamidletimeout": "write response_idle_timeout: 5m", "proxyreadtimeout": silences, "readtimeout": silences, "timeoutserver": silences, "timeout": "write response_timeout: 30s, and connect_timeout: 2s",
		"timeoutconnect": "write connect_timeout: 2s", "proxyconnecttimeout": "write connect_timeout: 2s", "dialtimeout": "write connect_timeout: 2s",
		"lbpolicy": balanced, "loadbalancing": balanced, "lb": balanced, "strategy": balanced, "retries": noRetries, "passhostheader": "remove it: the host of the request is always passed on",
		"slowstart": "write limit: auto, which finds what a target carries that has just started", "weight": "remove it: targets have no weights; balance: least_loaded gives more to the quicker",
	},
	"gate": {
		"status": refusals, "limitreqstatus": refusals, "denystatus": refusals, "circuitbreaker": "write limit: auto, and passive_health: {failures: 5, for: 10s} in the upstream",
		"limitreq": quotaForm, "limitreqzone": quotaForm, "ratelimit": quotaForm, "tokenbucket": quotaForm, "httpreqrate": quotaForm, "sticktable": quotaForm, "limitrate": "remove it: weir counts requests, not bytes; rate: 10/s limits requests",
		"average": quotaForm, "requests": quotaForm, "nodelay": "remove it: nothing waits for a quota without queue:", "delay": "write quota: {queue: 10}",
		"limitconn": "write limit: 10", "inflightreq": "write limit: 10", "maxconn": "write limit: 10", "concurrency": "write limit: 10", "maxinflight": "write limit: 10", "adaptiveconcurrency": "write limit: auto", "sourcecriterion": "write by: [address]",
		"key": "write by: [address]", "per": "write each: {by: tenant} beside limit:", "onclientdisconnect": leaving,
	},
	"limit": {
		"amount": "write limit: 10", "value": "write limit: 10", "size": "write limit: 10", "fullconn": "write max: 1000", "maxqueue": "write queue: 100", "queuelen": "write queue: 100", "timeoutqueue": "write queue: {max_wait: 2s}", "maxwait": "write queue: {max_wait: 2s}",
		"minrttcalcparams": "remove it: weir's controllers find what a request takes without a pause", "concurrencyupdateinterval": "write window: 100ms", "type": "write controller:", "algorithm": "write controller:",
	},
	"quota": {
		"average": "write rate: 100/s", "events": "write rate: 100/min", "requests": "write rate: 100/s", "window": "write it in the rate: 100/min", "period": "write it in the rate: 100/min", "limit": "write rate: 100/s", "tokensperfill": "write rate: 10/s",
		"fillinterval": "write it in the rate: 10/s", "maxtokens": "write burst: 100", "key": "write by: [address]", "descriptors": "write rules: [{user: alice, rate: 50/s}]", "per": "write by: [user]",
	},
	"rule": {
		"requestsperunit": "write rate: 10/s", "unit": "write it in the rate: 10/s", "limit": "write rate: 10/s", "ip": "write address: 10.0.0.0/8", "network": "write address: 10.0.0.0/8",
	},
	"listener": {
		"keepalivetimeout": "write idle_timeout: 75s", "forwardedheaders": "write identity: {trusted_proxies: [10.0.0.0/8]} at the top", "proxyprotocol": "remove it: write identity: {trusted_proxies: [10.0.0.0/8]} at the top, for X-Forwarded-For",
		"listen": "write address: \":8080\"", "bind": "write address: \":8080\"", "host": "write address: \":8080\"", "port": "write it in the address: 0.0.0.0:8080", "portvalue": "write it in the address: 0.0.0.0:8080",
		"sslcertificate": "write tls: {cert: server.crt, key: server.key}", "sslcertificatekey": "write tls: {cert: server.crt, key: server.key}", "ssl": "write tls: {cert: server.crt, key: server.key}", "cert": "write it below tls", "key": "write it below tls",
		"servername": "write it before the path in a route: match: [example.com/]", "clientmaxbodysize": "remove it: weir has no limit on bodies", "filterchains": "remove it: routes name the gates and the upstream", "http2": "remove it: with tls HTTP/2 is on; h2c: true is for HTTP/2 without TLS",
	},
	"tls": {
		"certresolver": noIssuing, "certfile": "write cert: server.crt", "keyfile": "write key: server.key", "certificate": "write cert: server.crt", "ca": "write client_ca: clients.pem", "minversion": "remove it: TLS 1.2 is the lowest",
	},
	"metrics": {
		"prometheus": "remove it: the address of admin serves /metrics", "address": "write admin: {address: 127.0.0.1:8090} at the top; it serves /metrics", "enabled": "remove it: the address of admin serves /metrics",
	},
	"identity": {
		"xffnumtrustedhops": "write trusted_proxies: [10.0.0.0/8]", "useremoteaddress": "write client: address",
		"setrealipfrom": "write trusted_proxies: [10.0.0.0/8]", "trustedips": "write trusted_proxies: [10.0.0.0/8]", "trust": "write trusted_proxies: [10.0.0.0/8]", "ip": "write client: address", "address": "write client: address", "key": "write user: header:X-User",
		"realip": "write client: address, and trusted_proxies: [10.0.0.0/8]",
	},
	"admin": {
		"accesslogpath": "write access_log: {to: stdout} at the top", "listen": "write address: 127.0.0.1:8090", "port": "write it in the address: 127.0.0.1:8090", "bind": "write address: 127.0.0.1:8090",
	},
	"kafka": {
		"bootstrapservers": brokersForm, "bootstrapserver": brokersForm, "brokers": brokersForm, "brokerlist": brokersForm, "servers": brokersForm, "address": brokersForm, "addresses": brokersForm,
		"ssl": "write tls: {}", "securityprotocol": "write tls: {}, and sasl: {mechanism: scram-sha-512, user: weir, password_file: kafka.password}", "ssltruststorelocation": "write tls: {ca: ca.pem}, with a PEM file", "sslcafile": "write tls: {ca: ca.pem}",
		"saslmechanism": saslForm, "saslmechanisms": saslForm, "sasljaasconfig": saslForm, "username": saslForm, "user": saslForm, "password": saslForm,
		"listeners": "write listen: {address: 127.0.0.1:19092}", "listener": "write listen: {address: 127.0.0.1:19092}", "port": "write listen: {address: 127.0.0.1:19092}",
		"advertisedlisteners": "write nodes: {ports: 9100-9199, advertise: kafka.example.org}", "advertise": "write nodes: {ports: 9100-9199, advertise: kafka.example.org}", "ports": "write nodes: {ports: 9100-9199, advertise: kafka.example.org}",
		"producerbyterate": "write quotas: {produce: in}, and the rate in the gate in", "consumerbyterate": "write quotas: {fetch: out}, and the rate in the gate out", "gates": "write quotas: {produce: in, fetch: out}",
	},
	"listen": {
		"maxconnectionsperip": "write connections: {per_address: 10}", "maxconnectionsperipoverrides": "write connections: {exempt: [10.0.0.0/8]}", "maxconnectioncreationrate": "write connections: {rate: 20}", "ssl": "write tls: {cert: kafka.crt, key: kafka.key}",
		"securityprotocol": "write tls: {cert: kafka.crt, key: kafka.key}, or remove it for none", "host": "write address: 0.0.0.0:9092", "port": "write it in the address: 127.0.0.1:19092", "listeners": "write address: 127.0.0.1:19092",
		"advertisedlisteners": "write it beside listen: nodes: {ports: 9100-9199, advertise: kafka.example.org}", "advertise": "write it beside listen: nodes: {ports: 9100-9199, advertise: kafka.example.org}", "sasl": "remove it: clients log in at the brokers",
	},
	"nodes": {
		"advertisedlisteners": "write advertise: kafka.example.org, without a port", "advertisedhostname": "write advertise: kafka.example.org", "host": "write advertise: kafka.example.org", "hostname": "write advertise: kafka.example.org", "address": "write advertise: kafka.example.org",
		"port": "write ports: 9100-9199", "range": "write ports: 9100-9199", "firstport": "write ports: 9100-9199",
	},
	"quotas": {
		"producerbyterate": "write produce: and the name of a gate", "consumerbyterate": "write fetch: and the name of a gate", "controllermutationrate": "write mutations: and the name of a gate with debt: true", "connectioncreationrate": "write connections: and the name of a gate",
		"producer": "write produce: and the name of a gate", "consumer": "write fetch: and the name of a gate", "consume": "write fetch: and the name of a gate", "requestpercentage": "remove it: that quota stays the brokers' own", "request": "remove it: that quota stays the brokers' own",
		"quotawindownum": "write samples: 11", "quotawindowsizeseconds": "write window: 1s", "autocreatetopicsenable": "write auto_create: count, or auto_create: off",
	},
	"sasl": {
		"username": "write user: weir", "name": "write user: weir", "principal": "write user: weir, the name alone", "password": "write password_file: kafka.password, a file with nothing but the password", "passwd": "write password_file: kafka.password, a file with nothing but the password",
		"saslmechanism": "write mechanism: scram-sha-512", "type": "write mechanism: scram-sha-512", "jaasconfig": "write user: weir, and password_file: kafka.password", "sasljaasconfig": "write user: weir, and password_file: kafka.password",
	},
	"passive_health": {
		"consecutive5xx": "write failures: 5", "maxfails": "write failures: 5", "baseejectiontime": "write for: 30s", "failtimeout": "write for: 30s", "duration": "write for: 30s", "interval": "write for: 30s",
	},
}

// translateNames gives the faults of unknown fields what to write for a word of another product.
func translateNames(faults []fault.Fault) {
	for i := range faults {
		f := &faults[i]
		if f.Problem != noField || len(f.Path) == 0 {
			continue
		}
		word := strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(f.Path[len(f.Path)-1]))
		if instead := elsewhere[groupOf(f.Path[:len(f.Path)-1])][word]; instead != "" {
			f.Instead = instead
		}
	}
}

// noField is what the decoder says of an unknown field.
const noField = "there is no such field"

// groupOf names the group at a path, as elsewhere has it.
func groupOf(path fault.Path) string {
	last := ""
	for i, step := range path {
		switch {
		case i == 0 || i == 1 && strings.HasPrefix(step, "[") || i == 1 && (path[0] == "upstreams" || path[0] == "gates" || path[0] == "stores" || path[0] == "kafka"):
			last = map[string]string{"upstreams": "upstream", "gates": "gate", "routes": "route", "listeners": "listener"}[path[0]]
			if last == "" {
				last = path[0]
			}
		case strings.HasPrefix(step, "[") && last == "rules":
			last = "rule"
		default:
			last = step
		}
	}
	return last
}
