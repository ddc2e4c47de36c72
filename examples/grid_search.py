"""scikit-learn's grid search over the objectives of a Closeknit estimator.

TextCNN keeps it quick, because it needs no pretrained encoder.
"""

from sklearn.model_selection import GridSearchCV

from closeknit import TextClassifier, load

rows = load("messages").parts["train"]
classifier = TextClassifier(encoder="textcnn", epochs=6, batch_size=32)
grid = {"objective": ["cross_entropy", "triple_entropy"], "learning_rate": [1e-3, 2e-3]}
search = GridSearchCV(classifier, grid, cv=2, scoring="f1_weighted").fit(rows.texts, rows.labels)
scores = search.cv_results_["mean_test_score"]
for settings, score in zip(search.cv_results_["params"], scores, strict=True):
    print(f"{score:.3f}", settings)
print("best:", search.best_params_)
