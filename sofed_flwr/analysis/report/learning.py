"""What the encoder learned: accuracies, loss, and whether it collapses."""

from sofed_flwr.analysis.report.section import Runs, Section, curves, over_rounds
from sofed_flwr.analysis.report.tables import accuracy_names, accuracy_title, headline


def accuracy(runs: Runs) -> Section:
    """The headline."""
    table = headline(runs)
    caption = (
        "Test accuracy in percent on top of the frozen encoder: before training, and at the last evaluated round. kNN "
        "takes the vote of the nearest training images; the linear probe is a classifier trained with that share of "
        "the labels (paper, Table 3). The difference between the two rows is what the federation learned."
    )
    nothing = "<p>No accuracy has been logged: nothing was evaluated yet, or the dataset has no labels.</p>"
    return Section("Accuracy", caption, tables=[table.html() if table.rows else nothing])


def learning_curves(runs: Runs) -> Section:
    """kNN and each label fraction over the rounds."""
    caption = (
        "Test accuracy in percent after each evaluated round; round 0 is the encoder before training. Higher is "
        "better, and a steeper curve learns faster (paper, Fig. 4)."
    )
    charts: list[str] = []
    for name in accuracy_names(runs):
        charts += over_rounds(curves(runs, name), "accuracy (%)", accuracy_title(name))
    return Section("Learning curves", caption, charts=charts)


def loss(runs: Runs) -> Section:
    """The training loss."""
    caption = (
        "Self-supervised training loss, mean over the devices that answered, without unit. It falls while the online "
        "network learns to predict the target network. Policies keep different images, and the loss is measured on "
        "what they keep: compare accuracies between runs, not losses."
    )
    return Section("Loss", caption, charts=over_rounds(curves(runs, "loss"), "loss"))


def collapse(runs: Runs) -> Section:
    """Constant features give a perfect loss and a useless encoder."""
    caption = (
        "Spread of the normalised test features, without unit: 0 is a collapsed encoder, which maps every image to the "
        "same point; about 1 is a healthy one, 0.6 if features are never negative. A fall means more than the level."
    )
    charts = over_rounds(curves(runs, "feature_std"), "spread of the features", y_limits=(0, None))
    return Section("Feature spread (collapse watch)", caption, charts=charts)
