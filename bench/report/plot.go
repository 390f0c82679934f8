// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"devxlab.example/bench"
)

// A figure is drawn as wide as a phone is, so that its text is readable there;
// the style sheet lets it grow by half on anything larger.
const (
	figureWidth = vg.Length(380)
	textSize    = vg.Length(12)
)

// ink is a colour of a figure: on paper and light screens, and the name of the
// style sheet's variable that replaces it in the page, where there is a dark
// scheme too.
type ink struct {
	light    color.RGBA
	variable string
}

func rgb(v uint32) color.RGBA { return color.RGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 255} }

var (
	black = ink{rgb(0x1b1f24), "--ink"}
	grey  = ink{rgb(0x57606a), "--grey"}
	grid  = ink{rgb(0xd0d7de), "--grid"}
	card  = ink{rgb(0xf6f8fa), "--card"} // what a figure lies on
	// Told apart by the colour-blind (after Okabe and Ito), and by their dashes.
	lines = []ink{{rgb(0x0067a5), "--line1"}, {rgb(0xb34700), "--line2"}, {rgb(0x00735a), "--line3"}, {rgb(0x93397a), "--line4"}}
)

var dashes = [][]vg.Length{nil, {7, 3}, {2, 2}, {8, 3, 2, 3}}

// recolour puts variables in the place of colours, and families that every
// system has in the place of gonum's font. Arial has the widths of Liberation
// Sans, with which the text was measured.
var recolour = func() *strings.Replacer {
	pairs := []string{"font-family:Liberation Sans;font-variant:none;", "font-family:Arial,Helvetica,'Liberation Sans',sans-serif;", "font-family:Liberation Sans;font-variant:normal;", "font-family:Arial,Helvetica,'Liberation Sans',sans-serif;"}
	for _, c := range append([]ink{black, grey, grid, card}, lines...) {
		hex := fmt.Sprintf("#%02X%02X%02X", c.light.R, c.light.G, c.light.B)
		for _, use := range []string{"fill:", "stroke:"} {
			pairs = append(pairs, use+hex, use+"var("+c.variable+","+strings.ToLower(hex)+")")
		}
	}
	return strings.NewReplacer(pairs...)
}()

// svg draws a figure for use within HTML. title and about are for who does not
// see it.
func svg(id, title, about string, height vg.Length, paint func(draw.Canvas)) template.HTML {
	c := vgsvg.New(figureWidth, height)
	paint(draw.NewCanvas(c, figureWidth, height))
	var b bytes.Buffer
	_, _ = c.WriteTo(&b) // into memory
	_, body, _ := strings.Cut(b.String(), "<svg")
	_, body, _ = strings.Cut(body, ">")
	esc := template.HTMLEscapeString
	// The two attributes keep the viewer's text size from mattering, so that
	// what was measured fits.
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>`,
		float64(figureWidth), float64(height), id, id, id, esc(title), id, esc(about)) + recolour.Replace(body))
}

func style(c ink, x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color: c.light, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, textSize),
		XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler,
	}
}

// newPlot returns an empty one in the page's style.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.LineStyle.Width = grey.light, 0.75
		a.Tick.LineStyle.Color, a.Tick.LineStyle.Width, a.Tick.Length = grey.light, 0.75, 4
		a.Padding = 4
		label, tick := style(black, 0, 0), style(grey, 0, 0)
		a.Label.TextStyle.Color, a.Label.TextStyle.Font = label.Color, label.Font
		a.Tick.Label.Color, a.Tick.Label.Font = tick.Color, tick.Font
		a.Label.Padding = 3
	}
	// gonum lets the labels touch the ticks.
	p.X.Tick.Label.YAlign, p.X.Label.Padding = -1.15, 6
	p.X.Label.Text, p.Y.Label.Text = x, y
	return p
}

// painter is a plotter.
type painter func(c draw.Canvas, at func(x, y float64) vg.Point)

func (f painter) Plot(c draw.Canvas, p *plot.Plot) {
	f(c, func(x, y float64) vg.Point { return vg.Point{X: c.X(p.X.Norm(x)), Y: c.Y(p.Y.Norm(y))} })
}

// write writes text over whatever is there.
func write(c *draw.Canvas, s text.Style, at vg.Point, words string) {
	r := s.Rectangle(words).Add(at)
	c.SetColor(card.light)
	c.Fill(vg.Rectangle{Min: vg.Point{X: r.Min.X - 2, Y: r.Min.Y}, Max: vg.Point{X: r.Max.X + 2, Y: r.Max.Y}}.Path())
	c.FillText(s, at, words)
}

func stroke(c ink, width vg.Length, dash ...vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: c.light, Width: width, Dashes: dash}
}

// rules draws a line across at each of an axis's labelled ticks.
func rules(a *plot.Axis, vertical bool) plot.Plotter {
	return painter(func(c draw.Canvas, at func(x, y float64) vg.Point) {
		for _, t := range a.Tick.Marker.Ticks(a.Min, a.Max) {
			if t.Label == "" || t.Value < a.Min || t.Value > a.Max {
				continue
			}
			n := a.Norm(t.Value)
			if vertical {
				c.StrokeLine2(stroke(grid, 0.75), c.X(n), c.Min.Y, c.X(n), c.Max.Y)
			} else {
				c.StrokeLine2(stroke(grid, 0.75), c.Min.X, c.Y(n), c.Max.X, c.Y(n))
			}
		}
	})
}

// thin drops labels that would touch the one before them; keep names one that
// stays.
func thin(ticks []plot.Tick, a *plot.Axis, length vg.Length, keep string) plot.ConstantTicks {
	s := style(grey, 0, 0)
	type span struct{ from, to vg.Length }
	var taken []span
	place := func(t plot.Tick) bool {
		mid, half := vg.Length(a.Norm(t.Value))*length, s.Width(t.Label)/2+3
		for _, o := range taken {
			if mid-half < o.to && mid+half > o.from {
				return false
			}
		}
		taken = append(taken, span{mid - half, mid + half})
		return true
	}
	for _, t := range ticks {
		if t.Label == keep {
			place(t)
		}
	}
	var out plot.ConstantTicks
	for _, t := range ticks {
		if t.Label != keep && !place(t) {
			t.Label = ""
		}
		out = append(out, t)
	}
	return out
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// unit returns the unit that figures up to ns are shown in.
func unit(ns float64) (name string, size float64) {
	switch {
	case ns < 1e3:
		return "ns", 1
	case ns < 1e6:
		return "µs", 1e3
	case ns < 1e9:
		return "ms", 1e6
	}
	return "s", 1e9
}

// whole formats a parameter's value: 32768 is 32Ki.
func whole(x float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if x >= u.size && math.Mod(x, u.size) == 0 {
			return strconv.FormatFloat(x/u.size, 'f', -1, 64) + u.name
		}
	}
	if x == math.Trunc(x) && math.Abs(x) < 1e9 {
		return count(int64(x))
	}
	return strconv.FormatFloat(x, 'g', 6, 64)
}

// sweepPlot draws a quantity against a parameter; ok is false if there is
// nothing to draw.
func sweepPlot(id, title string, s *bench.Sweep) (_ template.HTML, fromZero, ok bool) {
	var points []bench.Point
	low, high := math.Inf(1), 0.0
	for _, p := range s.Points {
		if !finite(p.X, float64(p.Median)) || s.Log && p.X <= 0 {
			continue
		}
		points = append(points, p)
		for _, y := range []float64{float64(p.Low), float64(p.Median), float64(p.High)} {
			if finite(y) {
				low, high = min(low, y), max(high, y)
			}
		}
	}
	if len(points) == 0 {
		return "", false, false
	}
	name, size := unit(high)
	p := newPlot(s.X, s.What+", "+name)
	p.X.Min, p.X.Max = points[0].X, points[len(points)-1].X
	if s.Log {
		p.X.Label.Text += " (log)"
		p.X.Scale = plot.LogScale{}
		if p.X.Min == p.X.Max {
			p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
		}
	} else if p.X.Min == p.X.Max {
		p.X.Min, p.X.Max = p.X.Min-1, p.X.Max+1
	}
	// A step that is small against the whole must stay visible: then the axis
	// does not begin at zero, and the caption says so.
	fromZero = low < 0.75*high
	p.Y.Min, p.Y.Max = 0, 1.08*high/size
	if !fromZero || low < 0 {
		margin := max(0.15*(high-low), 0.01*math.Abs(high))
		p.Y.Min, p.Y.Max = (low-margin)/size, (high+margin)/size
	}
	var ticks []plot.Tick
	for _, q := range points {
		if n := len(ticks); n == 0 || ticks[n-1].Value != q.X {
			ticks = append(ticks, plot.Tick{Value: q.X, Label: whole(q.X)})
		}
	}
	if !s.Log && len(ticks) > 12 {
		ticks = plot.DefaultTicks{}.Ticks(p.X.Min, p.X.Max)
	}
	p.X.Tick.Marker = thin(ticks, &p.X, figureWidth-70, "")

	line := lines[0]
	if s.Void != "" {
		line = grey
	}
	p.Add(rules(&p.Y, false))
	if k := s.Knee; k != nil && k.Found && finite(float64(k.At)) {
		p.Add(kneeMark(k, p))
	}
	p.Add(painter(func(c draw.Canvas, at func(x, y float64) vg.Point) {
		run := [][]vg.Point{nil} // between void points
		for _, q := range points {
			x, y := q.X, float64(q.Median)/size
			if q.Void != "" {
				run = append(run, nil)
				v := at(x, y)
				c.StrokeLines(stroke(grey, 1.5), []vg.Point{{X: v.X - 3, Y: v.Y - 3}, {X: v.X + 3, Y: v.Y + 3}}, []vg.Point{{X: v.X - 3, Y: v.Y + 3}, {X: v.X + 3, Y: v.Y - 3}})
				c.FillText(style(grey, text.XCenter, text.YBottom), vg.Point{X: v.X, Y: v.Y + 5}, "void")
				continue
			}
			run[len(run)-1] = append(run[len(run)-1], at(x, y))
			if finite(float64(q.Low), float64(q.High)) {
				a, b := at(x, float64(q.Low)/size), at(x, float64(q.High)/size)
				c.StrokeLines(stroke(line, 1), []vg.Point{a, b}, []vg.Point{{X: a.X - 3, Y: a.Y}, {X: a.X + 3, Y: a.Y}}, []vg.Point{{X: b.X - 3, Y: b.Y}, {X: b.X + 3, Y: b.Y}})
			}
		}
		for _, part := range run {
			if len(part) > 1 {
				c.StrokeLines(stroke(line, 1.75), part)
			}
			for _, at := range part {
				c.DrawGlyph(draw.GlyphStyle{Color: line.light, Radius: 2.75, Shape: draw.CircleGlyph{}}, at)
			}
		}
	}))
	return svg(id, title, about(s), 260, p.Draw), fromZero, true
}

// kneeMark draws where a knee is, and its interval.
func kneeMark(k *bench.Knee, p *plot.Plot) plot.Plotter {
	return painter(func(c draw.Canvas, at func(x, y float64) vg.Point) {
		clamp := func(x float64) float64 { return min(max(x, p.X.Min), p.X.Max) }
		mark := lines[1]
		if finite(float64(k.Low), float64(k.High)) {
			a, b := at(clamp(float64(k.Low)), p.Y.Min), at(clamp(float64(k.High)), p.Y.Max)
			y := c.Min.Y + 3
			c.StrokeLines(stroke(mark, 3), []vg.Point{{X: a.X, Y: y}, {X: b.X, Y: y}})
		}
		x := at(clamp(float64(k.At)), 0).X
		c.StrokeLine2(stroke(mark, 1.25, 5, 3), x, c.Min.Y, x, c.Max.Y)
		label, align, dx := "knee "+whole(float64(k.At)), text.XLeft, vg.Length(5)
		if x > c.Center().X {
			align, dx = text.XRight, -5
		}
		write(&c, style(mark, align, text.YTop), vg.Point{X: x + dx, Y: c.Max.Y}, label)
	})
}

func about(s *bench.Sweep) string {
	var parts []string
	for _, p := range s.Points {
		part := fmt.Sprintf("%s: %s", whole(p.X), bench.Nanos(float64(p.Median)))
		if p.Void != "" {
			part += " (void)"
		}
		parts = append(parts, part)
	}
	return fmt.Sprintf("%s against %s. %s.", s.What, s.X, strings.Join(parts, "; "))
}

// forest is comparisons that belong into one figure.
type forest struct {
	title  string
	labels []string
	cs     []bench.Comparison
}

// forests puts comparisons together that have the first part of their names in
// common, "own" of "own/workers=1/how=batched", and names them by the rest.
func forests(all []bench.Comparison) (out []forest) {
	at := map[string]int{}
	for _, c := range all {
		first, _, found := strings.Cut(c.A, "/")
		if !found || !strings.HasPrefix(c.B, first+"/") {
			first = ""
		}
		i, ok := at[first]
		if !ok {
			i = len(out)
			at[first] = i
			out = append(out, forest{title: first})
		}
		out[i].cs = append(out[i].cs, c)
	}
	for i := range out {
		f := &out[i]
		rest, same := "", true
		for j, c := range f.cs {
			in := func(s string) string { return strings.TrimPrefix(s, f.title+"/") }
			label := pair(in(c.A), in(c.B))
			_, r, found := strings.Cut(label, ": ")
			same = same && found && (j == 0 || r == rest)
			rest = r
			f.labels = append(f.labels, label)
		}
		if same && len(f.cs) > 1 {
			f.title += ": " + rest
			for j := range f.labels {
				f.labels[j], _, _ = strings.Cut(f.labels[j], ": ")
			}
		}
	}
	return out
}

// forestPlot draws ratios with their intervals, and a line at 1.
func forestPlot(id, title string, labels []string, all []bench.Comparison) (_ template.HTML, ok bool) {
	var cs []bench.Comparison
	var names, said []string
	low, high := 1/1.05, 1.05
	for i, c := range all {
		q := c.Ratio
		if !finite(float64(q.Median), float64(q.Low), float64(q.High)) || q.Low <= 0 {
			continue
		}
		cs, names = append(cs, c), append(names, labels[i])
		said = append(said, fmt.Sprintf("%s: %s, %s", pair(c.A, c.B), q.Interval(), q.Answer))
		low, high = min(low, float64(q.Low)/1.05), max(high, float64(q.High)*1.05)
	}
	if len(cs) == 0 {
		return "", false
	}
	const row = 33
	p := newPlot("ratio A / B of the times (log)", "")
	p.HideY()
	p.X.Scale = plot.LogScale{}
	p.X.Min, p.X.Max = low, high
	p.Y.Min, p.Y.Max = 0, float64(len(cs))
	p.X.Tick.Marker = thin(ratioTicks(low, high), &p.X, figureWidth-10, "1")
	p.Add(rules(&p.X, true), painter(func(c draw.Canvas, at func(x, y float64) vg.Point) {
		one := at(1, 0).X
		c.StrokeLine2(stroke(black, 1.25), one, c.Min.Y, one, c.Max.Y+14)
		// What the sides mean, where there is room for it.
		for _, side := range []struct {
			label string
			align text.XAlignment
			x     vg.Length
			room  vg.Length
		}{{"← A takes less", text.XRight, one - 6, one - c.Min.X}, {"A takes more →", text.XLeft, one + 6, c.Max.X - one}} {
			if s := style(grey, side.align, text.YBottom); s.Width(side.label)+8 < side.room {
				c.FillText(s, vg.Point{X: side.x, Y: c.Max.Y + 3}, side.label)
			}
		}
		for i, x := range cs {
			top := at(1, float64(len(cs)-i)).Y - 2
			line, glyph := lines[0], draw.GlyphDrawer(draw.BoxGlyph{})
			note := x.Ratio.Interval()
			switch {
			case x.Void != "":
				line, glyph, note = grey, draw.SquareGlyph{}, note+" void"
			case x.Ratio.Answer == bench.Worse:
				line = lines[1]
			case x.Ratio.Answer != bench.Better:
				line = grey
			}
			numbers := style(line, text.XRight, text.YTop)
			write(&c, numbers, vg.Point{X: c.Max.X, Y: top}, note)
			write(&c, style(black, text.XLeft, text.YTop), vg.Point{X: c.Min.X, Y: top}, cut(names[i], c.Max.X-c.Min.X-numbers.Width(note)-12))
			y := top - 22
			c.StrokeLine2(stroke(line, 2), at(float64(x.Ratio.Low), 0).X, y, at(float64(x.Ratio.High), 0).X, y)
			c.DrawGlyph(draw.GlyphStyle{Color: line.light, Radius: 3.5, Shape: glyph}, vg.Point{X: at(float64(x.Ratio.Median), 0).X, Y: y})
		}
	}))
	height := vg.Length(row*len(cs)) + 62
	return svg(id, title, strings.Join(said, "; ")+".", height, func(c draw.Canvas) { p.Draw(draw.Crop(c, 0, 0, 0, -18)) }), true
}

// ratioTicks are round numbers on both sides of 1.
func ratioTicks(low, high float64) (ticks []plot.Tick) {
	for _, steps := range [][]float64{{1, 2, 5}, {1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8}, {1, 1.1, 1.2, 1.3, 1.4, 1.5, 2, 3, 4, 5, 6, 7, 8, 8.5, 9, 9.5}, {1, 1.02, 1.04, 1.06, 1.08, 9.2, 9.4, 9.6, 9.8}} {
		ticks = nil
		for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
			for _, m := range steps {
				if v := m * math.Pow(10, e); v >= low && v <= high {
					ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
				}
			}
		}
		if len(ticks) >= 4 {
			break
		}
	}
	return ticks
}

// pair names a comparison without saying twice what both have in common:
// "own/workers=1: how=batched / how=serial".
func pair(a, b string) string {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	if len(x) != len(y) {
		return a + " / " + b
	}
	var both, left, right []string
	for i := range x {
		if x[i] == y[i] {
			both = append(both, x[i])
		} else {
			left, right = append(left, x[i]), append(right, y[i])
		}
	}
	if len(both) == 0 || len(left) == 0 {
		return a + " / " + b
	}
	return strings.Join(both, "/") + ": " + strings.Join(left, "/") + " / " + strings.Join(right, "/")
}

// cut shortens text to a width.
func cut(s string, most vg.Length) string {
	st := style(black, 0, 0)
	if st.Width(s) <= most {
		return s
	}
	r := []rune(s)
	for len(r) > 1 && st.Width(string(r)+"…") > most {
		r = r[:len(r)-1]
	}
	return string(r) + "…"
}

// perFigure is how many lines a percentile plot has: as many as are told apart.
const perFigure = 4

// tailPlot draws latency against 1/(1-q), up to the percentile that ten
// operations are beyond: for P99.9 that is 10,000.
func tailPlot(id, title string, series []*bench.Series) (_ template.HTML, ok bool) {
	type curve struct {
		name string
		x, y []float64
	}
	var curves []curve
	names := shortNames(series)
	low, high, far := math.Inf(1), 0.0, 10.0
	for i, s := range series {
		c := curve{name: names[i]}
		n := s.Histogram.TotalCount()
		most := max(float64(n)/10, 2)
		seen := int64(0)
		// Each bar of the histogram holds from the share below it to that with it.
		for _, b := range s.Histogram.Distribution() {
			if b.Count == 0 {
				continue
			}
			x := 1 / (1 - float64(seen)/float64(n))
			if x > most {
				break
			}
			seen += b.Count
			to := most
			if seen < n {
				to = min(most, 1/(1-float64(seen)/float64(n)))
			}
			y := math.Max(float64(b.To), 1)
			c.x, c.y = append(c.x, x, to), append(c.y, y, y)
			low, high, far = min(low, y), max(high, y), max(far, to)
		}
		if len(c.x) > 0 {
			curves = append(curves, c)
		}
	}
	if len(curves) == 0 {
		return "", false
	}
	var said []string
	var margin vg.Length
	for i := range curves {
		q := &curves[i]
		q.name = cut(q.name, figureWidth/3)
		margin = max(margin, style(black, 0, 0).Width(q.name)+8)
		said = append(said, fmt.Sprintf("%s: up to %s", q.name, bench.Nanos(q.y[len(q.y)-1])))
	}
	p := newPlot("percentile (log of 1/(1−q))", "one operation (log)")
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Min, p.X.Max = 1, far
	p.Y.Min, p.Y.Max = low/1.1, high*1.15
	ticks := []plot.Tick{{Value: 1, Label: "0"}, {Value: 2, Label: "P50"}, {Value: 10, Label: "P90"}, {Value: 100, Label: "P99"}}
	for v, nines := 1e3, "P99.9"; v <= far; v, nines = v*10, nines+"9" {
		ticks = append(ticks, plot.Tick{Value: v, Label: nines})
	}
	p.X.Tick.Marker = thin(ticks, &p.X, figureWidth-80-margin, "")
	p.Y.Tick.Marker = timeTicks(p.Y.Min, p.Y.Max)
	p.Add(rules(&p.Y, false), rules(&p.X, true), painter(func(c draw.Canvas, at func(x, y float64) vg.Point) {
		ends := make([]vg.Length, len(curves))
		for i, q := range curves {
			path := make([]vg.Point, len(q.x))
			for j := range q.x {
				path[j] = at(q.x[j], q.y[j])
			}
			c.StrokeLines(stroke(lines[i], 1.75, dashes[i]...), path)
			ends[i] = path[len(path)-1].Y - textSize/2 + 1
		}
		// Names stand behind the ends of their lines, and make room for each other.
		order := make([]int, len(curves))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, float64(ends[a]-ends[b]))) })
		y := c.Min.Y
		for n, i := range order {
			left := vg.Length(len(order) - n)
			y = max(y, min(ends[i], c.Max.Y-left*(textSize+2)))
			q := curves[i]
			c.FillText(style(lines[i], text.XLeft, text.YBottom), vg.Point{X: at(q.x[len(q.x)-1], 1).X + 6, Y: y}, q.name)
			y += textSize + 2
		}
	}))
	return svg(id, title, strings.Join(said, "; ")+".", 290, func(c draw.Canvas) { p.Draw(draw.Crop(c, 0, -margin, 0, 0)) }), true
}

// timeTicks are 1, 2 and 5 of every power of ten.
func timeTicks(low, high float64) (ticks plot.ConstantTicks) {
	steps := []float64{1, 2, 5}
	if high/low > 3000 {
		steps = []float64{1}
	}
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: bench.Nanos(v)})
			}
		}
	}
	if len(ticks) < 2 {
		ticks = plot.ConstantTicks{{Value: low * 1.1, Label: bench.Nanos(low * 1.1)}, {Value: high / 1.15, Label: bench.Nanos(high / 1.15)}}
	}
	return ticks
}

// shortNames are the names without the parts that all have in common.
func shortNames(series []*bench.Series) []string {
	parts := make([][]string, len(series))
	least := math.MaxInt
	for i, s := range series {
		parts[i] = strings.Split(s.Name, "/")
		least = min(least, len(parts[i]))
	}
	common := 0
	for common < least-1 && !slices.ContainsFunc(parts, func(p []string) bool { return p[common] != parts[0][common] }) {
		common++
	}
	names := make([]string, len(series))
	for i := range series {
		names[i] = strings.Join(parts[i][common:], "/")
		if len(series) == 1 {
			names[i] = series[i].Name
		}
	}
	return names
}
