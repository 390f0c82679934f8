// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/cm/roce"
	"devxlab.example/emu/wire"
)

// loser loses messages of connection managers on the wire: the next ones of a kind,
// whichever card sends them.
type loser struct {
	mu      sync.Mutex
	stack   *roce.Stack
	parser  *gopacket.DecodingLayerParser
	decoded []gopacket.LayerType
	message roce.Attribute
	left    int
}

// forever is "all": more than are ever sent.
const forever = 1 << 30

// lose reads "MESSAGE", "MESSAGE N" or "MESSAGE all", and gives every port a filter
// in the place of the one before; "nothing" has none.
func (n *network) lose(text string) error {
	if n == nil || len(n.ports) == 0 {
		return errNoWire
	}
	var filter wire.Filter
	if text != "nothing" {
		l, err := newLoser(text)
		if err != nil {
			return err
		}
		filter = l.judge
	}
	for _, p := range n.ports {
		p.SetFilter(wire.Out, filter)
	}
	return nil
}

func newLoser(text string) (*loser, error) {
	wanted, times, _ := strings.Cut(text, " ")
	l := &loser{stack: roce.NewStack(), left: 1}
	l.parser = l.stack.Parser(layers.LayerTypeEthernet)
	var names []string
	for _, a := range roce.Attributes() {
		name := strings.TrimPrefix(a.String(), "CM ")
		names = append(names, name)
		if strings.EqualFold(wanted, name) {
			l.message = a
		}
	}
	switch {
	case l.message == 0:
		return nil, fmt.Errorf("lose %q: nothing, or one of %s, and how many or all", text, strings.Join(names, ", "))
	case times == "all":
		l.left = forever
	case times != "":
		n, err := strconv.Atoi(times)
		if err != nil || n < 1 || n > forever {
			return nil, fmt.Errorf("lose %q: how many is a number from 1 on, or all", text)
		}
		l.left = n
	}
	return l, nil
}

// judge is a wire.Filter.
func (l *loser) judge(f wire.Frame) wire.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 {
		return wire.Verdict{}
	}
	l.stack.MAD.AttributeID = 0
	// What cannot be decoded is no message.
	if err := l.parser.DecodeLayers(f.Data, &l.decoded); err != nil || l.stack.MAD.AttributeID != l.message || l.stack.MAD.Unread() != "" {
		return wire.Verdict{}
	}
	if l.left < forever {
		l.left--
	}
	return wire.Verdict{Drop: true}
}
