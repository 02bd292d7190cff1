package policy

import "testing"

// TestPatternMeant: what other products write for a path gets the pattern to write here.
func TestPatternMeant(t *testing.T) {
	for pattern, want := range map[string]string{
		"/":                    "",
		"/v1/":                 "",
		"POST /v1/{id}":        "",
		"GET  /":               "",
		"example.com/":         "",
		"/{path...}":           "",
		"/{$}":                 "",
		"example.com":          `"example.com/"`,
		"example.com:8080":     `"example.com/"`,
		"localhost":            `"localhost/"`,
		"v1":                   `"/v1/"`,
		"v1/users":             `"/v1/users"`,
		"GET v1/users":         `"GET /v1/users"`,
		"GET":                  `"GET /"`,
		"/api/*":               `"/api/"`,
		"/api/**":              `"/api/"`,
		"/api*":                `"/api/"`,
		"*":                    `"/"`,
		"/*":                   `"/"`,
		"/a/*/b":               `"/a/{any2}/b"`,
		"*.example.com/":       "",
		"*.example.com":        "",
		"^/v1":                 `"/v1/"`,
		"^/v1/.*$":             `"/v1/"`,
		"^/v1/(.*)":            `"/v1/"`,
		"/v1(/|$)(.*)":         `"/v1/"`,
		"^/health$":            `"/health"`,
		"~ ^/v1":               `"/v1/"`,
		"~* ^/v1/.+$":          `"/v1/"`,
		"^~ /static/":          `"/static/"`,
		"= /health":            `"/health"`,
		"location /v1/":        `"/v1/"`,
		"path_beg /api":        `"/api/"`,
		"path /api/*":          `"/api/"`,
		"handle /api/*":        `"/api/"`,
		`~ \.(php|jpg)$`:       "",
		"/users/:id":           `"/users/{id}"`,
		"/users/<int:id>":      `"/users/{id}"`,
		"/users/{id:[0-9]+}":   `"/users/{id}"`,
		"/files/*path":         `"/files/{path...}"`,
		"/files/{proxy+}":      `"/files/{proxy...}"`,
		"/x GET":               `"GET /x"`,
		"GET,POST /x":          `"GET /x" and "POST /x"`,
		"get|post /x":          `"GET /x" and "POST /x"`,
		"ANY /x":               `"/x"`,
		"* /x":                 `"/x"`,
		"http://example.com/x": `"example.com/x"`,
		"PathPrefix(`/v1`)":    `"/v1/"`,
		"Path(`/v1`)":          `"/v1"`,
		"Host(`example.com`)":  `"example.com/"`,
		"Host(`Example.com`) && PathPrefix(`/api/`)": `"example.com/api/"`,
		"Host(`a.org`) || Host(`b.org`)":             `"a.org/" and "b.org/"`,
		"Method(`GET`) && Path(`/x`)":                `"GET /x"`,
		"!PathPrefix(`/v1`)":                         "",
		"HostRegexp(`.+`)":                           "",
		"":                                           "",
	} {
		if got := PatternMeant(pattern); got != want {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
}
