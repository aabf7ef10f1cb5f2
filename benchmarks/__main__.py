from benchmarks.lab.command import main

main()
