module turngate.example/port

go 1.19
