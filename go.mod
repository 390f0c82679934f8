module devxlab.example

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	github.com/alecthomas/kong v1.17.0
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)

require github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
