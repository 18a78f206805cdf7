"""The stages after the rules, as the rules file wants them."""

from __future__ import annotations

from tandem.routing.settings import Settings
from tandem.routing.stages import Band, PlannedStage
from tandem.routing.stages_classifier import ClassifierPort, ClassifierStage

_HEAD_UNSURE = Band(0.4, 0.6)


def build_stages(settings: Settings, classifier: ClassifierPort) -> list[PlannedStage]:
    """In the order in which they are asked."""
    stages = []
    if settings.classifier.is_enabled:
        terms = settings.classifier
        stage = ClassifierStage(classifier, terms.engines)
        stages.append(PlannedStage(stage, terms.unsure or _HEAD_UNSURE, terms.budget_ms, terms.threshold))
    return stages
