package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Envoy is the configuration of an Envoy with one service behind it. Make it with Listen and Cluster, one of them the
// cluster "service", then Start it.
type Envoy struct{ listeners, clusters strings.Builder }

// Listen adds a port for clients. filters stand before the service: those of [EnvoyAsks], [EnvoyConcurrency] or none.
func (e *Envoy) Listen(name, addr, filters string) {
	fmt.Fprintf(&e.listeners, `    - name: %s
      address: {socket_address: {address: 127.0.0.1, port_value: %s}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: %[1]s
                use_remote_address: true
                http_filters:
%[3]s                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: service, timeout: 0s}}]}
`, name, port(addr), filters)
}

// EnvoyAsks is the filter that asks a cluster about each request. It is that of packaging/envoy/ext_proc.yaml, with more
// time for the answer.
func EnvoyAsks(cluster string) string {
	return fmt.Sprintf(`                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service: {envoy_grpc: {cluster_name: %s}}
                      processing_mode: {request_header_mode: SEND, response_header_mode: SEND, response_trailer_mode: SEND}
                      message_timeout: 10s
                      max_message_timeout: 35s
                      request_attributes: [source.address]
`, cluster)
}

// EnvoyConcurrency is Envoy's own filter that finds a limit, as its documentation sets it.
const EnvoyConcurrency = `                  - name: envoy.filters.http.adaptive_concurrency
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency
                      gradient_controller_config:
                        sample_aggregate_percentile: {value: 90}
                        concurrency_limit_params: {concurrency_update_interval: 0.1s}
                        min_rtt_calc_params: {jitter: {value: 10}, interval: 60s, request_count: 50}
                      enabled: {default_value: true, runtime_key: adaptive_concurrency.enabled}
`

// Cluster adds a server. The bounds of 1,024 that Envoy has by default are lifted: they are not what is measured.
func (e *Envoy) Cluster(name, addr string, h2 bool) {
	options := ""
	if h2 {
		options = `      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`
	}
	fmt.Fprintf(&e.clusters, `    - name: %s
      type: STATIC
      connect_timeout: 5s
%s      circuit_breakers: {thresholds: [{max_connections: 100000, max_requests: 100000, max_pending_requests: 100000}]}
      load_assignment:
        cluster_name: %[1]s
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]s}}}}]}]
`, name, options, port(addr))
}

// Start runs the program with one worker, and returns when it accepts connections at addr.
func (e *Envoy) Start(ctx context.Context, program, addr string) (*Process, error) {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // read once it listens
	file := filepath.Join(dir, "envoy.yaml")
	text := "static_resources:\n  listeners:\n" + e.listeners.String() + "  clusters:\n" + e.clusters.String()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return StartListening(ctx, addr, program, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
