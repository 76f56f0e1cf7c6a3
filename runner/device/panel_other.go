//go:build !amd64

package device

// panelPaths are the implementations that this processor can run.
func panelPaths() []panelPath { return []panelPath{{"go", panelGo}} }
