"""The command that trains FedPolicy's policy across federations.

Imports that load PyTorch are inside the function: ``--help`` is quick.
"""

from __future__ import annotations

from equipoise.cli.json_output import Output, add_json, print_json
from equipoise.cli.parser import Parser, add_quiet, output_file


def train_policy(arguments: list[str]) -> int:
    """Train a policy and write its file.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
    parser = Parser(
        "train-policy",
        "Train the policy of fedpolicy by reinforcement learning across many small federations, "
        "and write it to a file for --policy trained --policy-file FILE. The defaults make the "
        "shipped policy, in about 4 minutes on one core.",
    )
    parser.add_argument("--out", required=True, help="file to write, such as policy.json")
    parser.add_argument("--batches", type=int, help="batches of episodes (default: 60)")
    parser.add_argument("--federations", type=int, help="federations in a batch (default: 8)")
    parser.add_argument("--clients", type=int, help="clients of a federation (default: 10)")
    parser.add_argument("--rounds", type=int, help="rounds of a federation (default: 24)")
    parser.add_argument("--seed", type=int, help="seed of everything (default: 1)")
    add_quiet(parser)
    add_json(parser)
    values = parser.parse(arguments)
    output = Output(values.quiet, values.json)
    out = output_file(values.out)
    from equipoise.methods.fedpolicy.network import load_network, save_network
    from equipoise.methods.fedpolicy.training import (
        NEW_FEDERATIONS,
        TrainingOptions,
        describe,
        gain_over_gate,
        train,
    )
    from equipoise.report.terminal import step_progress

    names = ("batches", "federations", "clients", "rounds", "seed")
    asked = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
    options = TrainingOptions(**asked)
    with step_progress("batches of federations", not output.for_people) as update:
        network = train(options, lambda batch, *_: update(batch, options.batches))
    save_network(network, out, describe(options))
    policy = load_network(str(out))  # what the file holds, in its decimals
    gain = gain_over_gate(policy, options)
    about = describe(options) | {"new_federations": gain._asdict()}
    save_network(policy, out, about)
    if output.json:
        print_json(policy=str(out), about=about)
    elif output.for_people:
        print(
            f"On {NEW_FEDERATIONS} new federations: {gain.trained:.2f} % personal accuracy, "
            f"{gain.gate:.2f} % with the gate; difference {gain.difference:+.2f}, standard error "
            f"{gain.standard_error:.2f}. {gain.changed:.0%} of the decisions differ."
        )
        print(f"Wrote {out}: use it with --method fedpolicy --policy trained --policy-file {out}.")
    return 0
