// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"devxlab.example/lab/guest"
)

// maxGet bounds what one run brings back.
const maxGet = 4 << 30

// sink writes the files that the guest sends, only to where they were asked for.
type sink struct {
	get   []Copy
	file  *os.File
	total int64
	bad   bool // the rest of this file is dropped
}

func (s *sink) open(header []byte) error {
	err := s.close()
	var h guest.FileHeader
	if e := json.Unmarshal(header, &h); e != nil || h.Index < 0 || h.Index >= len(s.get) {
		s.bad = true
		return errors.Join(err, fmt.Errorf("%w: a file that nobody asked for", guest.ErrFrame))
	}
	f, e := create(s.get[h.Index], h)
	s.file, s.bad = f, e != nil
	return errors.Join(err, e)
}

func create(c Copy, h guest.FileHeader) (*os.File, error) {
	perm := fs.FileMode(h.Perm) & 0o777
	if h.Path == "" {
		if fi, err := os.Stat(c.To); err == nil && fi.IsDir() {
			c.To = filepath.Join(c.To, filepath.Base(c.From))
		}
		return os.OpenFile(c.To, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm|0o200)
	}
	if err := os.MkdirAll(c.To, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(c.To) // nothing that the guest says leads out of it
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if d := filepath.Dir(h.Path); d != "." {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	return root.OpenFile(h.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm|0o200)
}

func (s *sink) write(b []byte) error {
	if s.bad {
		return nil
	}
	if s.total += int64(len(b)); s.total > maxGet {
		s.bad = true
		return fmt.Errorf("more than %d bytes from the guest: the rest is dropped", int64(maxGet))
	}
	if s.file == nil {
		s.bad = true
		return fmt.Errorf("%w: data of no file", guest.ErrFrame)
	}
	_, err := s.file.Write(b)
	s.bad = err != nil
	return err
}

func (s *sink) close() error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}
