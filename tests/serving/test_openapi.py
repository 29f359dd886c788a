"""The OpenAPI document is true: schemathesis asks what it allows and what it does not, and looks at the answers."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from nearkin.serving.app import create_app
from nearkin.serving.settings import Settings

OPERATIONS = [
    *(("GET", "/health"), ("GET", "/index"), ("GET", "/metrics"), ("POST", "/search")),
    *(("POST", "/items"), ("POST", "/items/lookup"), ("POST", "/items/browse")),
    *(("GET", "/items/{id}"), ("DELETE", "/items/{id}")),
    *(("GET", "/items/{id}/thumbnail"), ("POST", "/corrections"), ("GET", "/corrections")),
    *(("DELETE", "/corrections/{id}"), ("GET", "/corrections.csv")),
]

DEPENDS = ("/search", "/items", "/items/browse")
"""Where bytes must be an image and names those of columns, which no schema can say."""


@pytest.fixture
def api(index):
    app = create_app(index, Settings(decoders=1, allow_hosts=("testserver",)))
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    app.state.service.close()


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_answers_are_as_the_document_says(api, method, path, mode):
    operation = api[path][method]

    @settings(max_examples=12, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        case.call_and_validate(excluded_checks=[positive_data_acceptance] if path in DEPENDS else [])

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # a request without parameters cannot be wrong


def test_the_document_names_every_route_and_refusal(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) >= {path for _, path in OPERATIONS}
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert {"401", "403", "422", "503"} <= set(operation["responses"]), (path, method)
    assert set(paths["/search"]["post"]["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert client.get("/docs").status_code == 404  # its page would load scripts from elsewhere
