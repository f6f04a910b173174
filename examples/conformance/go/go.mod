module turngate.example/conformance

go 1.19
