module turngate.example/conformance

go 1.19

require turngate.example/port v0.1.0

replace turngate.example/port => ../../../ports/go
