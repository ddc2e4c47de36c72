from closeknit.cli import main

main()
