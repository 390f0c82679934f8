// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"devxlab.example/cm/capture"
)

type captureCmd struct {
	Interface string        `arg:"" help:"Network interface. RoCE that a card does in hardware does not pass the kernel: of a card, its own sniffer is needed."`
	Write     string        `help:"Write the packets to this file in pcap format, - for standard output, instead of following connections." placeholder:"FILE"`
	Duration  time.Duration `help:"End after this time; default: at Ctrl-C." placeholder:"TIME"`
	Count     int           `help:"End after so many packets." placeholder:"N"`
	Totals    bool          `help:"No line for each connection."`
}

func (c *captureCmd) Run(e *env) error {
	l, err := capture.NewLive(c.Interface)
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: it needs CAP_NET_RAW: run it as root, or setcap cap_net_raw+ep %s", err, os.Args[0])
	}
	if err != nil {
		return err
	}
	if driver, err := os.Readlink(filepath.Join("/sys/class/net", c.Interface, "device/driver")); err == nil && filepath.Base(driver) == "mlx5_core" {
		fmt.Fprintf(e.err, "devxlab capture: RoCE of %s passes the kernel by: nothing will be seen of it here. In the lab use --tap; of a card, mirror the port of the switch, or use a libpcap with RDMA sniffing: tcpdump -i mlx5_0 -w - | devxlab pcap -\n", c.Interface)
	}
	put, done, err := c.sink(e)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ctx := e.ctx
	if c.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	var dropped int
	ended := make(chan struct{})
	end := func() {
		defer close(ended)
		dropped, _ = l.Dropped()
		_ = l.Close() // of a socket
	}
	stop := context.AfterFunc(ctx, end)
	for n := 0; err == nil && (n < c.Count || c.Count == 0); n++ {
		var f capture.Frame
		if f, err = l.Next(); err == nil {
			err = put(f)
		}
	}
	if stop() { // something failed, or there are enough
		end()
	} else if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	<-ended
	if dropped > 0 {
		fmt.Fprintf(e.err, "devxlab capture: the kernel dropped %d packets: this was too slow for them\n", dropped)
	}
	return errors.Join(err, done())
}

// sink returns where packets go, and what ends it.
func (c *captureCmd) sink(e *env) (put func(capture.Frame) error, done func() error, err error) {
	if c.Write == "" {
		f := capture.NewFollower()
		put = func(p capture.Frame) error {
			f.Add(p)
			return nil
		}
		return put, func() error { return (&pcapCmd{Totals: c.Totals}).show(e, f) }, nil
	}
	out, end := e.out, func() error { return nil }
	if c.Write != "-" {
		f, err := os.Create(c.Write)
		if err != nil {
			return nil, nil, err
		}
		out, end = f, f.Close
	}
	b := bufio.NewWriterSize(out, 1<<16)
	last := end
	end = func() error { return errors.Join(b.Flush(), last()) }
	w := pcapgo.NewWriterNanos(b)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	put = func(p capture.Frame) error {
		return w.WritePacket(gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: p.Wire}, p.Data)
	}
	return put, end, nil
}
