"""What to type instead: options with one dash, words that are no command, names that are none."""

from __future__ import annotations

import sys

import pytest
from command import main

from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError


@pytest.fixture
def typed(monkeypatch, capsys):
    """What the command ``grpo`` says of a line that is wrong."""

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["grpo", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        (said,) = capsys.readouterr().err.splitlines()
        return said

    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval x -variant dr", "grpo: no such option: -variant; two dashes: --variant"),
        ("eval x -epsilon=0.1", "grpo: no such option: -epsilon; two dashes: --epsilon=0.1"),
        ("verify x --loss 1", "grpo: no such option: --loss; match has it (grpo help --loss)"),
        ("version", "grpo: no such command 'version'; type: grpo --version"),
        (
            "-v dr eval x",
            "grpo: no such option: -v; options go after the command: grpo eval -v dr x",
        ),
        ("x.jsonl -v dr", "grpo: no such command 'x.jsonl'; for a file: grpo eval x.jsonl -v dr"),
        (
            "match x --logged metrics.loss",
            "grpo: --logged: expected NAME=PATH, NAME being one of loss, objective, kl, "
            "clip_fraction, gradient_norm, got 'metrics.loss'",
        ),
        (
            "eval x -v dr --variant=dapo",
            "grpo: -v takes one variant; for several: grpo compare -v dr,dapo",
        ),
        (
            "eval samples/dr_grpo.json --kl k9",
            "grpo: unknown kl 'k9'; did you mean k3? (grpo variants --stage kl)",
        ),
        (
            "convert samples/dr_grpo.json -o x.foo",
            "grpo: -o x.foo: convert writes .jsonl or .parquet; --to jsonl keeps a name",
        ),
        ("show --html", "grpo: option '--html' requires an argument (see grpo show --help)"),
    ],
)
def test_what_to_type_instead(typed, line, said):
    assert typed(line) == said


def test_a_command_that_is_nearly_one_is_named(typed):
    assert typed("evla x").startswith("grpo: no such command 'evla'; did you mean grpo eval?")


def test_letters_may_stand_at_their_values(grpo, dump):
    path = str(dump({}))
    assert grpo("eval", path, "-vdr", "--only", "loss").exit_code == 0


@pytest.mark.parametrize("flag", ["--html", "--svg"])
def test_a_page_without_a_file_to_read(typed, monkeypatch, flag):
    monkeypatch.setattr("sys.stdin", None)
    said = typed(f"show {flag} dump.jsonl")
    assert said.endswith(f"; {flag} names the page to write: grpo show FILE {flag} PAGE")


def test_an_unknown_hyperparameter_names_those_that_the_variant_reads(grpo, dump):
    path = str(dump({}))
    result = grpo("eval", path, "-v", "dr", "-p", "foo=1")
    assert (result.exit_code, result.stderr) == (
        2,
        "grpo: foo: unknown hyperparameter; dr reads delta, dual_clip, entropy_coef, "
        "epsilon_high, epsilon_low, log_ratio_clamp, reward_weights; "
        "grpo variants --hyperparameters lists all\n",
    )
    near = grpo("eval", path, "-v", "dr", "-p", "epsilom=1").stderr
    assert near == "grpo: epsilom: unknown hyperparameter; did you mean epsilon?\n"
    record = grpo("eval", str(dump({"hyperparameters": {"foo": 1}}))).stderr
    assert record.endswith("unknown hyperparameter; grpo variants --hyperparameters lists all\n")


def test_all_hyperparameters_are_listed(grpo):
    listed = grpo("variants", "--hyperparameters", "-f", "csv").stdout.splitlines()
    assert [line.partition(",")[0] for line in listed] == ["name", *HYPERPARAMETERS]
    shown = grpo("variants", "--hyperparameters").stdout
    assert all(name in shown for name in HYPERPARAMETERS)


RANGES = {
    "a finite number": "entropy_coef log_ratio_max clip_cov_lb clip_cov_ub reward_bias "
    "reward_scaling opd_kl_coef",
    "a finite number or null": "diff_low diff_high off_policy_mask_threshold advantage_clip_low "
    "advantage_clip_high",
    "a finite number > 0": "max_completion_length tau_pos tau_neg dro_beta m2_threshold "
    "loss_denominator fipo_decay_rate real_tau sdar_gate_beta",
    "a finite number > 0 or null": "kl_input_clamp kl_output_clamp delta log_ratio_clamp "
    "num_items_in_batch loss_scale_factor response_length global_batch_size batch_num_tokens "
    "reward_clip global_n_tokens",
    "a finite number > 1 or null": "dual_clip",
    "a finite number >= 1": "dcpo_ratio_max",
    "a finite number > 0 and <= 1": "clip_cov_ratio kl_cov_ratio",
    "a finite number >= 0 and <= 1": "gamma gae_lambda ipo_threshold rlsd_lambda "
    "top_entropy_quantile",
    "a finite number >= 0 or null": "rho_mask_low rho_mask_high is_low is_high ratio_low "
    "ratio_high outlier_token_is_threshold_low outlier_token_is_threshold_high "
    "token_mask_is_threshold_low token_mask_is_threshold_high",
    "a whole number >= 0": "std_ddof",
    "a whole number >= 0 and <= 18446744073709551615": "clip_cov_seed",
    "a whole number >= 1": "gradient_accumulation_steps dp_size num_processes gfpo_keep",
    "a whole number >= 1 or null": "steps_per_generation",
    "a whole number >= 0 and <= 1": "rlsd_negative_only",
    "a finite number > 0, or LOW_HIGH": "rollout_is_threshold",
    "a finite number > 0, or HIGH or LOW_HIGH (several: with commas) or null": (
        "rollout_rs_threshold"
    ),
    "a finite number, or numbers separated by commas": "reward_weights",
}
"""What hyperparameters may be, as their formulas allow; the others may be any number >= 0."""


def test_what_hyperparameters_may_be():
    given = {name: wanted for wanted, names in RANGES.items() for name in names.split()}
    assert set(given) < set(HYPERPARAMETERS)
    for name, row in HYPERPARAMETERS.items():
        assert row.words or row.wanted == given.get(name, "a finite number >= 0"), name
    assert HYPERPARAMETERS["gamma"].check("gamma", 0) == 0.0
    assert HYPERPARAMETERS["gamma"].check("gamma", 1) == 1.0
    for name, value in (("gamma", 1.0001), ("gamma", -1e-9), ("delta", 0.0), ("dual_clip", 1.0)):
        with pytest.raises(HyperparameterError, match=HYPERPARAMETERS[name].wanted):
            HYPERPARAMETERS[name].check(name, value)


@pytest.mark.parametrize("value", [2**63, 2**64, 1e308, 10**400])
def test_a_whole_number_has_at_most_64_bits(value):
    """Arrays hold no larger one, and JSON's writer none of more than 64 bits."""
    for name, row in HYPERPARAMETERS.items():
        if row.integer and name not in ("clip_cov_seed", "rlsd_negative_only"):
            with pytest.raises(HyperparameterError, match=f"{name}: expected a whole number >= "):
                row.check(name, value)
            assert row.check(name, 2**63 - 1) == 2**63 - 1
    seed = HYPERPARAMETERS["clip_cov_seed"]
    assert seed.check("clip_cov_seed", 2**64 - 1) == 2**64 - 1
    with pytest.raises(HyperparameterError, match="<= 9223372036854775807, got "):
        HYPERPARAMETERS["dp_size"].check("dp_size", min(value, 1e308))


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_whole_number_beyond_all_floats_is_not_finite(value):
    with pytest.raises(HyperparameterError, match=r"beta: expected .*, got -?inf"):
        HYPERPARAMETERS["beta"].check("beta", value)


IDS = [{"id": f"a{number}", "step": number} for number in range(7)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--where", "step==1 or step==2"), 2, "--where: 'or' is not supported: all tests must"),
        (("--where", "stepp==1"), 3, "the first records have no field stepp, but step, "),
        (("--where", "step==9"), 3, "no record matches --where; step is 0, 1, 2, 3, 4, …"),
        (("--record", "a9"), 3, "no record matches --record a9; the first ids are a"),
        (("--html", "/nowhere/page.html"), 2, "--html: cannot write /nowhere/page.html"),
        (("--svg", "/nowhere/page.svg"), 2, "--svg: cannot write /nowhere/page.svg"),
    ],
)
def test_what_is_not_there_is_answered_by_what_is(grpo, dump, words, code, said):
    result = grpo("show", str(dump(*IDS)), *words)
    assert result.exit_code == code
    assert said in result.stderr


def test_what_an_option_takes_is_listed_or_the_command_that_lists_it(grpo):
    """Every option that takes a word: its words stand there, or a command that is run here."""
    text = " ".join(grpo("eval", "--help-all").stdout.split())
    for option, lists in {
        "--variant NAME": "grpo variants",
        "Objective (": "grpo variants --stage kl",
        "--from FORMAT": "grpo formats",
        "--param NAME=VALUE": "grpo variants --hyperparameters",
    }.items():
        assert f"`{lists}`" in text[text.index(option) :][:150], option
        assert grpo(*lists.split()[1:]).exit_code == 0
    for choices in ("batch, record,", "table, json, jsonl,", "--on-error stop|skip"):
        assert choices in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kl", "k33"), "unknown kl 'k33'; did you mean k3? (grpo variants --stage kl)"),
        (
            ("--aggregate", "x"),
            "unknown aggregate 'x'; expected one of response-mean, token-mean, token-sum, "
            "token-sum-norm, prompt-mean, turn-mean, trajectory-mean, response-sum, sum, or a "
            "framework's (grpo variants --stage aggregate)",
        ),
        (
            ("--kl-aggregate", "token-meen"),
            "unknown kl_aggregate 'token-meen'; did you mean token-mean? "
            "(grpo variants --stage aggregate)",
        ),
    ],
)
def test_an_unknown_choice_is_answered_by_the_near_one_or_by_the_neutral_ones(
    grpo, dump, words, said
):
    result = grpo("eval", str(dump({})), *words)
    assert (result.exit_code, result.stderr) == (2, f"grpo: {said}\n")
