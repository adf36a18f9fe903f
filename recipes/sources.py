"""What a run reads, looked at before it starts: files only, without torch, Ray, vLLM or transformers."""

from __future__ import annotations

from recipes.model_folder import check_model_files
from recipes.model_folder import is_hub_name as is_hub_model
from roll_ray.data import check_rows, load_prompts
from roll_ray.data_files import is_hub_name as is_hub_data
from roll_ray.errors import RollRayError
from roll_ray.settings import RunSettings
from roll_ray.settings_io import default_values

ROWS_LOOKED_AT = 100


def look_at_sources(settings: RunSettings) -> tuple[list[str], list[str]]:
    """Problems and notes: whether the model's files are there, and whether the data's first rows can be read.

    A model that is the recipe's own default and no path (`demo`) is made by the recipe. What is on the hub is noted.
    """
    problems, notes = [], []
    made = settings.model == default_values(type(settings)).get("model") and "/" not in settings.model
    if not made and is_hub_model(settings.model):
        notes.append(_on_the_hub("model", settings.model))
    elif not made:
        try:
            check_model_files(settings.model)
        except RollRayError as error:
            problems.append(f"model={settings.model}: {error}")
    for name, source in _data(settings).items():
        if is_hub_data(source):
            notes.append(_on_the_hub(name, source))
            continue
        try:
            check_rows(source, ROWS_LOOKED_AT)
        except RollRayError as error:
            problems.append(f"{name}={source}: {error}")
    return problems, notes


def check_data(settings: RunSettings) -> None:
    """Raise DataError for data without prompts, before a recipe spends minutes on making its model.

    Reads every row; what depends on the model (the length limit) is counted later, with its tokenizer.
    """
    for source in _data(settings).values():
        load_prompts(source)


def _data(settings: RunSettings) -> dict[str, str]:
    named = {"data": settings.data}
    if settings.evaluation.every_steps:
        named["evaluation.data"] = settings.evaluation.data
    return {name: source for name, source in named.items() if source is not None}


def _on_the_hub(name: str, source: str) -> str:
    return (
        f"{name}={source} is not a path here, so it is a name of the hub: it is looked at when the run starts"
    )
