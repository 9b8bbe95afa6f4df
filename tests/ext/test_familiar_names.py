"""An option of another framework never reaches the model as a parameter: it is refused, with what to use instead."""

import dataclasses
import inspect

import agents
import provider_fields
import pydantic_ai
import pytest
from langgraph.prebuilt import create_react_agent
from llama_index.core.agent.workflow import FunctionAgent

from antiphon import Agent
from antiphon.errors import UsageError
from antiphon.input.parameters import check_params

OURS = {*inspect.signature(Agent).parameters}
SERVICES = {name for service in provider_fields.PARAMETERS for name in provider_fields.parameters(service)}
NOT_PASSED_ON = {"functions", "input", "instructions", "messages", "model", "stream", "system"}
INSTALLED = {
    "openai-agents": [field.name for field in dataclasses.fields(agents.Agent)],
    "pydantic-ai": list(inspect.signature(pydantic_ai.Agent).parameters),
    "langgraph": [
        one.name
        for one in inspect.signature(create_react_agent).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ],
    "llama-index": list(FunctionAgent.model_fields),
}
OTHERS = {  # which the tests do not install
    "crewai": "role goal backstory llm max_iter max_execution_time verbose allow_delegation step_callback "
    "knowledge_sources",
    "google-adk": "instruction global_instruction sub_agents generate_content_config output_schema "
    "before_agent_callback after_agent_callback before_model_callback after_model_callback before_tool_callback "
    "after_tool_callback",
    "autogen": "system_message llm_config model_client human_input_mode code_execution_config max_tool_iterations",
    "agno": "knowledge db session_state num_history_runs debug_mode team",
    "smolagents": "planning_interval managed_agents prompt_templates",
    "strands": "callback_handler conversation_manager hook_providers",
}  # fmt: skip
FAMILIAR = INSTALLED | {framework: names.split() for framework, names in OTHERS.items()}


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        (framework, name)
        for framework, names in FAMILIAR.items()
        for name in names
        if name not in OURS and (name not in SERVICES or name in ("prompt", "response_format"))
    ],
)
def test_an_option_of_another_framework_is_refused_with_what_to_use(framework, name):
    with pytest.raises(UsageError, match=rf"^{name}= .*(use|did you mean) "):
        Agent("scripted", "any", **{name: "x"})


@pytest.mark.parametrize("name", sorted(SERVICES - NOT_PASSED_ON))
def test_a_parameter_of_a_service_is_passed_on(name):
    check_params({name: {}})
