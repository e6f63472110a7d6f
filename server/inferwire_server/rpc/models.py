"""ModelService: what is served."""

from __future__ import annotations

from typing import Any

import grpc
from inferwire.v1 import model_pb2, model_pb2_grpc

from inferwire_server.domain.errors import InvalidRequest
from inferwire_server.domain.limits import LIMITS
from inferwire_server.rpc import translate
from inferwire_server.scheduling.intake import Intake
from inferwire_server.scheduling.validation import honoured_fields, max_output_count

Context = grpc.aio.ServicerContext[Any, Any]


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """One process serves one model; the contract knows several."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Context) -> model_pb2.ListModelsResponse:
        """One page holds them all."""
        if request.page_size > LIMITS.page_size:
            raise InvalidRequest("page_size", f"at most {LIMITS.page_size}", limit=LIMITS.page_size)
        if request.page_token:
            raise InvalidRequest("page_token", "not a token that this server has given")
        return model_pb2.ListModelsResponse(models=[self._model()])

    async def GetModel(self, request: model_pb2.GetModelRequest, context: Context) -> model_pb2.GetModelResponse:
        """Describe the served model."""
        self._intake.check_model(request.model)
        return model_pb2.GetModelResponse(model=self._model())

    def _model(self) -> model_pb2.Model:
        facts, capabilities = self._intake.facts, self._intake.capabilities
        return translate.model(
            facts,
            capabilities,
            self._intake.model_state(),
            request_fields=honoured_fields(capabilities, facts),
            max_output_count=max_output_count(capabilities),
        )
