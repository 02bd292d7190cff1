package signal

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// group is a directory of a control group that this process is in.
type group struct {
	dir string
	v1  bool
}

// groups finds the control groups of this process that has accepts, innermost
// first: of version 2, or, if it accepts none of those, of version 1 by the
// controller's name. Inside a container the path in /proc may be the host's,
// of which only the end is mounted; every directory on the way up is looked at,
// and the mount itself is the last.
func (f files) groups(controller string, has func(group) bool) ([]group, error) {
	data, err := f.read("proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unsupported("no control groups here: /proc/self/cgroup does not exist")
	}
	if err != nil {
		return nil, err
	}
	all, err := parseMemberships(data)
	if err != nil {
		return nil, err
	}
	for _, v1 := range []bool{false, true} {
		for _, m := range all {
			names := strings.Split(m.controllers, ",")
			if v1 != (m.controllers != "") || v1 && !slices.Contains(names, controller) {
				continue
			}
			for _, mount := range mounts(m, controller) {
				if found := accepted(mount, m.path, v1, has); len(found) > 0 {
					return found, nil
				}
			}
		}
	}
	return nil, unsupported("no control group of this process has a %s controller", controller)
}

// mounts are the usual places of a hierarchy. In a mixed system version 2 has a
// directory beside those of version 1.
func mounts(m membership, controller string) []string {
	const root = "sys/fs/cgroup"
	if m.controllers == "" {
		return []string{root, root + "/unified"}
	}
	return []string{root + "/" + controller, path.Join(root, path.Clean("/"+m.controllers))}
}

func accepted(mount, below string, v1 bool, has func(group) bool) []group {
	var found []group
	for p := path.Clean("/" + below); ; p = path.Dir(p) {
		if g := (group{path.Join(mount, p), v1}); fs.ValidPath(g.dir) && has(g) {
			found = append(found, g)
		}
		if p == "/" {
			return found
		}
	}
}
