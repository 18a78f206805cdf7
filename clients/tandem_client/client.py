"""The two faces of the client over one core. A transport is imported when it is chosen: gRPC is a heavy import."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType

from tandem_client.core import AnswerBuilder, chat_call, prompt_call
from tandem_client.errors import ClientError
from tandem_client.guide import Guide
from tandem_client.results import Answer, Call, Event, Message
from tandem_client.text import Sampling
from tandem_client.tools import Tool
from tandem_client.transport import AsyncTransport, Transport


class TandemClient:
    """Blocking client: ``TandemClient.http("http://127.0.0.1:8080")`` or ``TandemClient.grpc("127.0.0.1:8001")``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    def http(cls, base_url: str, *, api_key: str | None = None) -> TandemClient:
        from tandem_client.http_transport import HttpTransport

        return cls(HttpTransport(base_url, api_key=api_key))

    @classmethod
    def grpc(cls, address: str) -> TandemClient:
        from tandem_client.grpc_transport import GrpcTransport

        return cls(GrpcTransport(address))

    def __enter__(self) -> TandemClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
    ) -> Answer:
        """A complete answer to a text or to messages.

        ``guide`` is what the answer must match. ``tool_choice`` is none, auto, required, or the name of one of ``tools``.
        Raises: ClientError; ValueError for arguments that contradict each other.
        """
        return self._collect(
            chat_call(
                messages,
                model=model,
                task=task,
                sampling=sampling,
                guide=guide,
                tools=tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
            )
        )

    def complete(
        self,
        prompt: str,
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
    ) -> Answer:
        """The continuation of a plain text, without a chat template. Raises: ClientError."""
        return self._collect(prompt_call(prompt, model=model, task=task, sampling=sampling, guide=guide))

    def stream(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
    ) -> Generator[Event, None, None]:
        """One Head, Deltas, one Usage, as they come. Closing the generator stops the generation. Raises: ClientError."""
        return self._transport.stream(
            chat_call(
                messages,
                model=model,
                task=task,
                sampling=sampling,
                guide=guide,
                tools=tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
            )
        )

    def models(self) -> tuple[str, ...]:
        """Raises: ClientError."""
        return self._transport.models()

    def _collect(self, call: Call) -> Answer:
        builder = AnswerBuilder()
        try:
            with closing(self._transport.stream(call)) as events:
                for event in events:
                    builder.add(event)
            return builder.finish()
        except ClientError as error:
            builder.note_failure(error)
            raise


class AsyncTandemClient:
    """The same for asyncio."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    @classmethod
    def http(cls, base_url: str, *, api_key: str | None = None) -> AsyncTandemClient:
        from tandem_client.http_transport import AsyncHttpTransport

        return cls(AsyncHttpTransport(base_url, api_key=api_key))

    @classmethod
    def grpc(cls, address: str) -> AsyncTandemClient:
        from tandem_client.grpc_transport import AsyncGrpcTransport

        return cls(AsyncGrpcTransport(address))

    async def __aenter__(self) -> AsyncTandemClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
    ) -> Answer:
        """A complete answer to a text or to messages.

        ``guide`` is what the answer must match. ``tool_choice`` is none, auto, required, or the name of one of ``tools``.
        Raises: ClientError; ValueError for arguments that contradict each other.
        """
        return await self._collect(
            chat_call(
                messages,
                model=model,
                task=task,
                sampling=sampling,
                guide=guide,
                tools=tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
            )
        )

    async def complete(
        self,
        prompt: str,
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
    ) -> Answer:
        """The continuation of a plain text, without a chat template. Raises: ClientError."""
        return await self._collect(prompt_call(prompt, model=model, task=task, sampling=sampling, guide=guide))

    def stream(
        self,
        messages: str | Sequence[Message],
        *,
        model: str = "tandem",
        task: str | None = None,
        sampling: Sampling | None = None,
        guide: Guide | None = None,
        tools: Sequence[Tool] = (),
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """One Head, Deltas, one Usage, as they come. Closing the generator stops the generation. Raises: ClientError."""
        return self._transport.stream(
            chat_call(
                messages,
                model=model,
                task=task,
                sampling=sampling,
                guide=guide,
                tools=tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
            )
        )

    async def models(self) -> tuple[str, ...]:
        """Raises: ClientError."""
        return await self._transport.models()

    async def _collect(self, call: Call) -> Answer:
        builder = AnswerBuilder()
        try:
            async with aclosing(self._transport.stream(call)) as events:
                async for event in events:
                    builder.add(event)
            return builder.finish()
        except ClientError as error:
            builder.note_failure(error)
            raise
