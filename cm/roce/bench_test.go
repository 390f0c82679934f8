// SPDX-License-Identifier: BSD-2-Clause

package roce_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/bench"
	"devxlab.example/cm/roce"
)

// routed returns the frames of the capture that are RoCEv2.
func routed(t testing.TB) (frames [][]byte) {
	t.Helper()
	for _, f := range roce.Packets(t) {
		if gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Lazy).Layer(layers.LayerTypeUDP) != nil {
			frames = append(frames, f)
		}
	}
	return frames
}

// BenchmarkDecode has frames decoded whole, as far as UDP by gopacket's own layers,
// and their checksums computed.
func BenchmarkDecode(b *testing.B) {
	frames := routed(b)
	whole, udp := parsers()
	var decoded []gopacket.LayerType
	for name, each := range map[string]func(f []byte) error{
		"to=end": func(f []byte) error { return whole.DecodeLayers(f, &decoded) },
		"to=udp": func(f []byte) error { return udp.DecodeLayers(f, &decoded) },
		"icrc":   func(f []byte) error { _, err := roce.CheckICRC(f[roce.EtherBytes:]); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if err := each(frames[i]); err != nil {
					b.Fatal(err)
				}
				if i++; i == len(frames) {
					i = 0
				}
			}
		})
	}
}

// parsers returns one that decodes all, and one that ends at UDP.
func parsers() (whole, udp *gopacket.DecodingLayerParser) {
	s := roce.NewStack()
	return s.Parser(layers.LayerTypeEthernet), roce.NewParser(layers.LayerTypeEthernet, &s.Ethernet, &s.IPv4, &s.IPv6, &s.UDP)
}

// BenchmarkDecodePairs has the same frames decoded whole and as far as UDP, in
// turns that begin with either: what all of RoCE takes beside gopacket's own layers.
// The ratio is the median of pairs; low and high cover it with 95 %.
func BenchmarkDecodePairs(b *testing.B) {
	const passes = 200 // of all frames, in a turn
	frames := routed(b)
	whole, udp := parsers()
	var decoded []gopacket.LayerType
	turn := func(p *gopacket.DecodingLayerParser) float64 {
		began := time.Now()
		for range passes {
			for _, f := range frames {
				_ = p.DecodeLayers(f, &decoded) // they are whole: TestStack
			}
		}
		return float64(time.Since(began)) / float64(passes*len(frames))
	}
	var all, part []float64
	for b.Loop() {
		if len(all)%2 == 0 {
			all, part = append(all, turn(whole)), append(part, turn(udp))
		} else {
			part, all = append(part, turn(udp)), append(all, turn(whole))
		}
	}
	r := bench.CompareCosts(all, part, 1)
	if r.Pairs < bench.MinPairs || math.IsNaN(float64(r.Low)) {
		return // too short a run: -benchtime 40x
	}
	b.ReportMetric(0, "ns/op") // of 200 passes: says nothing
	b.ReportMetric(bench.Median(all), "ns/packet")
	b.ReportMetric(bench.Median(part), "ns/packet-to-UDP")
	b.ReportMetric(float64(r.Median), "ratio")
	b.ReportMetric(float64(r.Low), "ratio-low")
	b.ReportMetric(float64(r.High), "ratio-high")
}
