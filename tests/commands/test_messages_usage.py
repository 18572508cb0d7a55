"""Flags: what they accept, what they refuse, and what to type instead."""

from __future__ import annotations

import json
import sys

import pytest
from command import main
from files import each

from grpo_cli.hyperparameters import HYPERPARAMETERS, HyperparameterError

# ---- options with one dash, words that are no command, names that are none -----------------------


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
        ("eval x --varient dr", "grpo: no such option: --varient; did you mean --variant?"),
        ("eval x --clip 0.2", "grpo: no such option: --clip; did you mean --epsilon?"),
        ("eval x --kl-coef 0.1", "grpo: no such option: --kl-coef; did you mean --beta?"),
        ("eval x --ddof 1", "grpo: no such option: --ddof; write -p std_ddof=1"),
        ("trend x --dual_clip=3", "grpo: no such option: --dual_clip; write -p dual_clip=3"),
        ("eval x --std-ddof", "grpo: no such option: --std-ddof; write -p std_ddof=VALUE"),
        ("eval x --xyzzy", "grpo: no such option: --xyzzy (see grpo eval --help)"),
        (
            "eval x -v ppo",
            "grpo: 'ppo' is not a variant but a choice of --surrogate, ppo = clip "
            "(grpo, dr, grpo-unbiased-kl use it): write -v grpo or --surrogate ppo",
        ),
        (
            "eval x -v dappo",
            "grpo: unknown variant 'dappo'; did you mean dppo or dapo? (grpo variants lists all)",
        ),
        (
            "eval x -v trl",
            "grpo: 'trl' is a framework: name a row of it, as trl/grpo, trl/bnpo, trl/dr_grpo "
            "(grpo variants lists all)",
        ),
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


# ---- flags: what they accept, what they refuse, and how they say so ------------------------------


@each(
    ("arguments", "said"),
    [
        (["-v", "dapoo"], "did you mean dapo?"),
        (["--aggregate", "token-men"], "did you mean token-mean?"),
        (["--epsilon", "nan"], "expected a finite number, got 'nan'"),
        (["--epsilon", "inf"], "expected a finite number"),
        (["--epsilon", "1_0"], "expected a finite number"),
        (["--epsilon", "1e999"], "expected a finite number"),
        (["-p", "std_eps=1e999"], "--param: std_eps: expected a finite number, got 1e999"),
        (["-v", "verl/vanilla", "-p", "dual_clip=1"], "dual_clip"),
        (["-p", "std_eps"], "expected NAME=VALUE"),
        (["-p", "std_epz=1"], "did you mean std_eps?"),
        (["--beta", "0.1", "-p", "beta=0.2"], "beta is given twice"),
        (["--beta", "-1"], "beta"),
        (["--json", "-f", "csv"], "--json contradicts --format csv"),
        (["--only", "loss", "--fields", "loss"], "cannot go with --fields"),
        (["--only", "loss", "--json"], "cannot go with --json"),
        (["--only", "los"], "did you mean loss?"),
        (["--fields", "los"], "one of id, source, line"),
        (["--level", "token", "--fields", "gradients"], "did you mean gradient?"),
        (["--format", "xml"], "xml"),
        (["--level", "batches"], "batches"),
        (["--jobs", "-1"], "--jobs"),
        (["--nest", "-f", "csv"], "--nest is for --format jsonl"),
        (["-o", "no/where"], "cannot write"),
        (["-o", "."], "is a folder, which needs --on"),
    ],
)
def test_usage_errors(grpo, dump, arguments, said):
    result = grpo("eval", str(dump({})), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["compare", "match", "verify", "check", "split", "trend"])
def test_parquet_is_a_format_of_eval_alone(grpo, dump, command):
    result = grpo(command, str(dump({})), "-f", "parquet")
    assert result.exit_code == 2
    assert "'parquet' is not one of 'table'" in result.stderr


@pytest.mark.parametrize("command", ["compare", "check", "explain", "match"])
def test_where_no_record_is_left_the_ids_are_listed(grpo, dump, command):
    more = ["--loss", "0.1"] if command == "match" else []
    result = grpo(command, str(dump({"id": "step3"})), "--record", "step4", *more)
    assert result.exit_code == 3
    assert "step3" in result.stderr


@pytest.mark.parametrize(
    ("command", "flag"), [("eval", "-o"), ("check", "-o"), ("show", "--html"), ("show", "--svg")]
)
def test_the_input_is_never_replaced(grpo, dump, tmp_path, command, flag):
    path = dump({})
    before = path.read_bytes()
    for place in (str(path), str(tmp_path)):
        result = grpo(command, place, flag, str(path))
        assert result.exit_code == 2
        assert result.stderr == f"grpo: {flag} {path} is the input: name another file\n"
        assert path.read_bytes() == before
    other = tmp_path / "other"
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)
    assert grpo(command, str(path), flag, str(other)).exit_code in (0, 1)  # what it made itself


def test_a_usage_error_is_json_where_json_is_wanted(grpo, dump):
    result = grpo("eval", str(dump({})), "--json", "-v", "nope")
    error = json.loads(result.stderr)["error"]
    assert error["kind"] == "usage"
    assert error["source"] is None
    assert "nope" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["--epsilon", "0.3"], "clip[low=0.3,high=0.3]"),
        (["--epsilon", "0.3", "--epsilon-high", ".5"], "clip[low=0.3,high=0.5]"),
        (["--beta", "0.1"], "beta=0.1"),
        (["-v", "verl/vanilla", "-p", "dual_clip=1.1"], "1.1"),
        (["-p", "std_ddof=0"], "ddof=0"),
        (["-p", "kl_weight=ratio"], "weight=ratio"),
        (["-p", "log_ratio_clamp=null"], "ratio:token|"),
        (["--aggregate", "seq-mean-token-sum"], "agg:token-sum|"),
        (["--kl", "low_var_kl"], "kl:k3["),
        (["--batch", "record"], "batch:record|"),
    ],
)
def test_flags_reach_the_signature(grpo, dump, arguments, piece):
    result = grpo("eval", str(dump({})), "--json", *arguments)
    assert piece in json.loads(result.stdout)["signature"]


def test_output_appears_whole_or_not_at_all(grpo, dump, tmp_path):
    path, out = str(dump({})), tmp_path / "out.json"
    out.write_text("before")
    out.chmod(0o640)
    assert grpo("eval", path, "-v", "nope", "-o", str(out)).exit_code == 2
    assert out.read_text() == "before"
    result = grpo("eval", path, "--json", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(out.read_text())["total"]["records"] == 1
    assert out.stat().st_mode & 0o777 == 0o640
    broken = str(dump({}, '{"rewards": 1}'))
    assert grpo("eval", broken, "-f", "jsonl", "-o", str(tmp_path / "new")).exit_code == 3
    assert not (tmp_path / "new").exists()
    assert grpo("eval", str(dump({})), "-o", str(tmp_path)).exit_code == 2


def test_help_and_version(grpo):
    for arguments in ((), ("-h",), ("--help",)):
        assert "grpo match FILE --loss 0.0123" in grpo(*arguments).output
    assert "--epsilon-low NUMBER" in grpo("eval", "--help-all").stdout
    result = grpo("eval", "-h")
    assert "zcat dump.jsonl.gz | grpo eval" in result.stdout
    assert "[FILE…]" in result.stdout
    assert grpo("-V").stdout == grpo("--version").stdout == "grpo 0.3.0\n"


def test_variants_as_json_and_as_a_table(grpo):
    document = json.loads(grpo("variants", "--json").stdout)
    rows = {row["name"]: row for row in document["variants"]}
    assert rows["dr"]["stages"]["advantage"] == "group-mean"
    assert "dr_grpo" in rows["dr"]["aliases"]
    assert rows["dapo"]["paper"] == "2503.14476"
    assert document["stages"]["kl"]["choices"]["k3"]["aliases"] == ["low_var_kl"]
    table = " ".join(grpo("variants").stdout.split())
    assert "Decoupled Clip and Dynamic Sampling Policy Optimization" in table
    assert "seq-mean-token-mean" in table
    some = grpo("variants", "trl/*").stdout
    assert "trl/dapo" in some
    assert "verl/" not in some
    assert grpo("variants", "x").exit_code == 2
