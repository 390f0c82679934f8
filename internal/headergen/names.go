// SPDX-License-Identifier: BSD-2-Clause

package headergen

import "strings"

// initialisms are written in capitals in Go names, as the field writes them.
var initialisms = map[string]string{}

func init() {
	for _, w := range strings.Fields(`
		ADS API BAR BSF CC CNP CQ CQC CQN CQE DBR DC DCI DCT DCR DEI DETH DEVX DMA DSCP
		ECN ECE ECPF EQ EQC EQN EQE ESW FD FPGA FTE GID GRH HCA HW IB ICRC ID IP ISSI
		KLM LAG LID LRO MAC MAD MKC MKEY MLID MR MSI MTT MTU NIC NODNIC OK PA PAS
		PCI PD PM PP PSID PSN QP QPC QPN RAE RC RDB RGID RLID RMAC RMP RMPN RMSN RNR
		RQ RQT RQN RRA RRE RSS RST RTR RTS RWE RX SAE SF SGD SIP SL SMAC SQ SQD SQPN
		SRA SRQ SRQN SSN TC TIR TIS TLS TSO TX UAR UC UCTX UD UDP UID UMEM UMR VHCA VL
		VLAN VSD WQ WQE WQEBB XRC XRCD XRQ XRQN 2ERR 2RST 2INIT 2RTR 2RTS INIT2INIT
		INIT2RTR RTR2RTS RTS2RTS SQERR2RTS SQD2RTS RTS2SQD RST2INIT L3 L2 L4 SER SQER
		OPTPAR RAW UX RO ODP CQN HS LIM IX SX VPORT EQS VF NOP UAC FC LM VNIC ACL
		ETS SET DEK ROCE ICM RMPC RQC SQC TISC TIRC RQTC SRQC PTYS PMTU PAOS FTE LSO DMAC DIP TCP`) {
		initialisms[strings.ToLower(w)] = w
	}
	for _, w := range []string{"set", "vport"} { // plain words
		delete(initialisms, w)
	}
	initialisms["roce"] = "RoCE"
	initialisms["umem"] = "Umem"
	initialisms["mkey"] = "MKey"
	initialisms["vport"] = "VPort"
	initialisms["uctx"] = "UCTX"
}

// camel turns a C identifier in snake case into an exported Go identifier.
func camel(s string) string {
	var b strings.Builder
	for _, w := range strings.Split(s, "_") {
		lw := strings.ToLower(w)
		switch up, ok := initialisms[lw]; {
		case w == "":
		case ok:
			b.WriteString(up)
		default:
			b.WriteString(strings.ToUpper(lw[:1]) + lw[1:])
		}
	}
	return b.String()
}
