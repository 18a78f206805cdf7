"""The stages after the rules, as the rules file wants them."""

from __future__ import annotations

from tandem.orchestration.port import EnginePort
from tandem.orchestration.scorer import ScorerPrompt, ScorerStage
from tandem.routing.head import OperatingPoint, read_operating_point
from tandem.routing.settings import ClassifierSettings, Settings
from tandem.routing.stages import Band, PlannedStage
from tandem.routing.stages_classifier import ClassifierPort, ClassifierStage
from tandem.text.tokenizer import Tokenizer


def build_stages(
    settings: Settings, classifier: ClassifierPort, port: EnginePort, tokenizer: Tokenizer, block_size: int
) -> list[PlannedStage]:
    """In the order in which they are asked. Raises: SetupError when the scorer can't work with this model."""
    stages: list[PlannedStage] = []
    if settings.classifier.is_enabled:
        terms = settings.classifier
        stage = ClassifierStage(classifier, terms.engines)
        unsure, threshold = _classifier_terms(terms, read_operating_point())
        stages.append(PlannedStage(stage, unsure, terms.budget_ms, threshold))
    if settings.scorer.is_enabled:
        scorer = ScorerStage(settings.scorer, ScorerPrompt(tokenizer), port, block_size)
        stages.append(PlannedStage(scorer, settings.scorer.unsure, settings.scorer.budget_ms))
    return stages


def _classifier_terms(terms: ClassifierSettings, point: OperatingPoint) -> tuple[Band, float]:
    """Grey band and threshold (a win rate): those of the rules file, else those that training found for the shipped head."""
    unsure = Band(point.grey_low, point.grey_high) if terms.unsure is None else terms.unsure
    return unsure, 1.0 - point.threshold if terms.threshold is None else terms.threshold
