"""The stages after the rules, as the rules file wants them."""

from __future__ import annotations

from tandem.orchestration.port import EnginePort
from tandem.orchestration.scorer import ScorerPrompt, ScorerStage
from tandem.routing.settings import Settings
from tandem.routing.stages import Band, PlannedStage
from tandem.routing.stages_classifier import ClassifierPort, ClassifierStage
from tandem.text.tokenizer import Tokenizer

_HEAD_UNSURE = Band(0.4, 0.6)


def build_stages(
    settings: Settings, classifier: ClassifierPort, port: EnginePort, tokenizer: Tokenizer, block_size: int
) -> list[PlannedStage]:
    """In the order in which they are asked. Raises: SetupError when the scorer can't work with this model."""
    stages: list[PlannedStage] = []
    if settings.classifier.is_enabled:
        terms = settings.classifier
        stage = ClassifierStage(classifier, terms.engines)
        stages.append(PlannedStage(stage, terms.unsure or _HEAD_UNSURE, terms.budget_ms, terms.threshold))
    if settings.scorer.is_enabled:
        scorer = ScorerStage(settings.scorer, ScorerPrompt(tokenizer), port, block_size)
        stages.append(PlannedStage(scorer, settings.scorer.unsure, settings.scorer.budget_ms))
    return stages
