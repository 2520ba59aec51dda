"""Prompts and responses: from a conversation to token ids, and back to text.

A *prompt* is the list of token ids of a rendered chat up to the place where the assistant speaks. A
*response* is the list of token ids that follow, with the end token if there is one. Within a stage
token ids are never decoded and encoded again; between stages there are texts (generations,
rankings), which people and other trainers read too.
"""

from lm.errors import UserError, first_line

# For tokenizers that bring no chat template of their own.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}Answer: {{ message['content'] }}{{ eos_token"
    " }}\n{% else %}Question: {{ message['content'] }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}Answer:{%"
    " endif %}"
)


def messages(question, instruction=None):
    """The conversation that asks `question`; an instruction (section 3.3, uncertainty generation)
    stands before it.
    """
    return [{"role": "user", "content": f"{instruction}\n\n{question}" if instruction else question}]


def rendered(lm, conversation):
    """The text that `render` encodes."""
    try:
        return lm.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program of the model's makers: it may fail in any way
        raise UserError(f"the model's chat template fails: {first_line(error)}") from None


def render(lm, conversation):
    """Token ids of a list of {"role", "content"} up to the assistant's turn: the prompt as
    generation sees it.

    Raises UserError where the chat template fails, or leaves nothing.
    """
    ids = lm.tokenizer(rendered(lm, conversation), add_special_tokens=False).input_ids
    if not ids:
        raise UserError("the model's chat template makes an empty prompt")
    return ids


def chat_prompt(lm, question, instruction=None):
    """Prompt ids of one question."""
    return render(lm, messages(question, instruction))


def response_ids(lm, text):
    """Token ids of a response given as text, with the end token. Behind PLAIN_TEMPLATE's "Answer:"
    it begins with a space.
    """
    encode = lambda text: lm.tokenizer(text, add_special_tokens=False).input_ids
    ids = (
        encode(f"Answer: {text}")[len(encode("Answer:")) :]
        if lm.tokenizer.chat_template == PLAIN_TEMPLATE
        else encode(text)
    )
    return ids + [lm.end_id]


def decode(lm, response):
    """Text of a response."""
    return lm.tokenizer.decode(response, skip_special_tokens=True).strip()


def has_ended(lm, response):
    """True where the response closed itself with an end token."""
    return bool(response) and response[-1] in lm.end_ids
