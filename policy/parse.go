package policy

// ParseSpec reads a Spec from JSON.
func ParseSpec(data []byte) (Spec, error) {
	var s Spec
	return s, Decode(data, &s)
}
